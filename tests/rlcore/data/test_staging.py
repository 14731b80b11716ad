"""The staging buffer copies each row from the environments to the device once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.data.staging import StagingBuffer
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.noise import Noise
from rlcore.train import collect
from rlcore.train.collect import Collector
from rlcore.types import Trajectory
from tests.rlcore.envs.counting_envs import CountingEnvs


class Copies(TorchDispatchMode):
    """Counts copies of more than one number."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.clone)
        return func(*args, **(kwargs or {}))


def collector() -> Collector:
    envs = CountingEnvs((2, 3, 5))
    return Collector(envs, RandomAgent(envs.spec), Noise(0, "policy"))


def parts(steps: Trajectory) -> dict[str, Any]:
    flags = ("reward", "terminated", "truncated", "is_first", "action")
    return {name: getattr(steps, name).clone() for name in flags} | {k: v.clone() for k, v in steps.obs.items()}


def test_packed_staging_matches_plain_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = collector()
    expected = [[parts(part) for part in plain.collect(5)] for _ in range(3)]
    monkeypatch.setattr(collect, "StagingBuffer", partial(StagingBuffer, packed=True))
    packed = collector()
    for rollout in expected:
        for given, wanted in zip(packed.collect(5), rollout, strict=True):
            for name, value in parts(given).items():
                assert torch.equal(value, wanted[name]) and value.dtype == wanted[name].dtype, name


def test_staging_copies_each_row_to_device_once() -> None:
    """Rows 0 to 5 are copied in the first rollout; in later ones, row 0 is on the device already and moves there."""
    envs = CountingEnvs((2, 3, 5))
    first = envs.reset()
    staging = StagingBuffer(6, first, torch.device("cpu"), packed=True)
    assert staging._packed is not None
    for rollout in range(3):
        arrival = first if rollout == 0 else staging.last
        assert arrival is not None
        with Copies() as copies:
            staging.begin(arrival)
        assert copies.count == (0 if rollout == 0 else 1)  # from the device to the device
        sent = list[int]()
        for t in range(5):
            with Copies() as copies:
                staging.show(t)
                staging.show(t)
            sent.append(copies.count)
            arrival = envs.step(torch.zeros(3, dtype=torch.int64).numpy())
            staging.put(t + 1, arrival)
        staging.last = arrival
        assert sent == [1 if rollout == 0 else 0, 1, 1, 1, 1]
        with Copies() as copies:
            staging.split()
            staging.split()
        assert copies.count == 1  # the last row, which has no action yet


def test_packed_columns_are_aligned_views() -> None:
    envs = CountingEnvs((2, 3, 5))
    arrival = envs.reset()
    staging = StagingBuffer(2, arrival, torch.device("cpu"), packed=True)
    staging.begin(arrival)
    obs, is_first = staging.show(0)
    assert is_first.dtype == torch.bool and is_first.tolist() == [True] * 3
    for key, rows in arrival.obs.items():
        assert obs[key].tolist() == rows.tolist() and not obs[key].numpy().flags.owndata
