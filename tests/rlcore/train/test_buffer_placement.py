"""Decision whether the replay buffer is on the GPU, with assumed amounts of free GPU memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flows.config.compose import compose
from rlcore.config.run import RunConfig
from rlcore.envs.make import make
from rlcore.envs.spaces import spec_of
from rlcore.system.free_memory import FreeResources
from rlcore.train import counting, resource_check
from rlcore.train.buffer_placement import RESERVE, place_buffer
from rlcore.train.counting import count
from rlcore.train.memory_estimate import estimate
from rlcore.train.resource_check import check_resources
from rlcore.train.trainer import Trainer

GB = 10**9
WORDS = ["exp=sac", "env=batched", "env.id=batched/Pendulum-v1", "algo.total_steps=200000", "buffer.size=100000"]
GPU = "fabric.accelerator=cuda"


def config(*words: str) -> RunConfig:
    return compose([*WORDS, *words])[0]


def placed(given: RunConfig, free: int | None) -> bool | None:
    spec = spec_of(make(given.env))
    return place_buffer(given, spec, count(given, spec), free).buffer.on_device


def needed() -> int:
    """Return the bytes of GPU memory that the run needs with the replay buffer on the GPU."""
    given = config(GPU, "buffer.on_device=true")
    spec = spec_of(make(given.env))
    parts = estimate(given, spec, count(given, spec)).device
    # observation 3, action 1, reward: float32; terminated, truncated, is_first: one byte each
    assert parts["replay memory"] > 100_000 * (4 * 5 + 3)
    return sum(parts.values())


def test_buffer_is_on_gpu_if_it_fits() -> None:
    least = needed() + RESERVE
    assert [placed(config(GPU), free) for free in (least, least - 1, None)] == [True, False, False]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["buffer.on_device=false"], False),
        (["buffer.on_device=true"], True),
        (["buffer.memmap=true"], False),
    ],
)
def test_other_keys_have_priority(words: list[str], expected: bool) -> None:
    assert placed(config(GPU, *words), 1000 * GB if expected is False else 0) is expected


def test_run_without_replay_buffer_or_with_unknown_sizes_stays_on_host() -> None:
    assert placed(compose(["exp=ppo", "env=batched", GPU])[0], 1000 * GB) is False
    given = config(GPU)
    assert place_buffer(given, spec_of(make(given.env)), None, 1000 * GB).buffer.on_device is False


@pytest.mark.parametrize(
    ("words", "gpu", "place"),
    [
        ([], 100 * GB, "the GPU's memory"),
        ([], RESERVE, "memory"),
        (["env=gym", "env.id=Pendulum-v1"], 100 * GB, "memory"),
    ],
)
def test_check_of_resources_uses_the_decision(
    words: list[str], gpu: int, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plenty = FreeResources(memory=20 * GB, disk=100 * GB, threads=30_000, cores=2)
    monkeypatch.setattr(resource_check.FreeResources, "at", staticmethod(lambda folder: plenty))
    monkeypatch.setattr(counting, "gpu_memory", lambda index: gpu)
    given = config(GPU)
    if words:
        given = compose([WORDS[0], *words, *WORDS[3:], GPU])[0]
    caplog.set_level("INFO")
    check_resources(given, spec_of(make(given.env)), Path("nowhere"), begun=True)
    assert {line.split(":")[0] for line in caplog.messages if "replay memory" in line} == {"disk", place}


def test_training_on_cpu_stays_as_it_was() -> None:
    one = Trainer(config("env.num_envs=2"))
    assert one.context.config == dataclasses.replace(
        one.config, buffer=dataclasses.replace(one.config.buffer, on_device=False)
    )
