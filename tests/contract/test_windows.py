"""Agents with windows over observation keys (`algo.windows`) pass the conformance checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import fresh, train_a_while
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window
from tests.contract.checks import conformance_cases
from tests.contract.test_registry import SETTINGS
from tests.soaking import heavy

PADDED = {"state": {"frames": 3, "dilation": 2, "kind": "padded"}}


def windowed(algo: str, windows: Any = PADDED, **settings: Any) -> RunConfig:
    keys = build(ALGORITHMS[algo].Config, SETTINGS[algo] | settings | {"windows": windows}, "algo.")
    return RunConfig(algo=keys, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


@heavy
@pytest.mark.parametrize(("algo", "check"), conformance_cases("ppo_recurrent", "ppo", "a2c"))
def test_padded_windows_pass_conformance(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(windowed(algo))


def test_encoder_gets_frames_and_masks_of_padded_window() -> None:
    encoder = train_a_while(windowed("ppo", normalize_obs=True)).learner.agent.encoder
    assert encoder.size == 3 * 4 + 3  # frames of 4 numbers, and a mask
    valid = torch.tensor([[False, True, True]])
    frames = 0.1 * torch.ones(1, 3, 4) * valid.unsqueeze(-1)
    seen = encoder._vector({"state": frames, "state_valid": valid}, 1)
    moments = encoder.normalizer.moments
    assert abs(moments.mean).max() > 0.001
    expected = ((frames - moments.mean) / moments.scale()) * valid.unsqueeze(-1)
    torch.testing.assert_close(seen, torch.cat([expected.flatten(1), valid], 1).float())


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"state": 4}, r"algo.windows.state=4: must have the form \{frames: 8, dilation: 1, kind: rolling\}"),
        ({"state": {"dilation": 2}}, "only frames is required"),
        ({"state": {"frames": 4, "stride": 2}}, "must have the form"),
        ({"state": {"frames": 1}}, "frames must be an integer of 2 or more"),
        ({"state": {"frames": True}}, "frames must be an integer of 2 or more"),
        ({"state": {"frames": 4, "dilation": 0}}, "dilation must be an integer of 1 or more"),
        ({"state": {"frames": 4, "kind": "sliding"}}, "kind must be one of rolling, padded"),
    ],
)
def test_windows_refuse_invalid_value(windows: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        windowed("ppo", windows)


class MaskedSum(nn.Module):
    """Network whose value is the number of valid frames; its features are the sums over the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.scale * obs["state"].sum(1), self.scale * obs["state_valid"].sum(1)


def test_own_network_gets_frames_and_mask_of_padded_window() -> None:
    run = windowed("ppo")
    agent = fresh(dataclasses.replace(run, algo=dataclasses.replace(run.algo, model=MaskedSum()))).learner.agent
    valid = torch.tensor([[False, True, True]])
    _, value = agent({"state": torch.ones(1, 3, 4) * valid.unsqueeze(-1), "state_valid": valid})
    assert value.tolist() == [2.0] and agent.model.obs_spec["state"].window == Window(3, 2, padded=True)


def test_windows_accept_nested_keys() -> None:
    windows = {"arm": {"angle": {"frames": 4}, "speed": {"frames": 2, "kind": "padded"}}, "leg.angle": {"frames": 3}}
    expected = {"arm.angle": Window(4), "arm.speed": Window(2, padded=True), "leg.angle": Window(3)}
    assert windowed("ppo", windows).algo.history == expected


def test_windows_refuse_keys_that_are_not_read_or_have_frame_stack() -> None:
    parts = {
        "state": ArraySpec((4,), "float32"),
        "rgb": ArraySpec((64, 64, 3), "uint8", kind="image", window=Window(4)),
    }
    spec = EnvSpec("Some-v0", parts, ActionSpec("Discrete", (), "int64", nvec=(2,)))
    with pytest.raises(UserError, match=r"algo.windows.speed: the agent does not read this key; use one of state,"):
        windowed("ppo", {"speed": {"frames": 2}}).algo.check_spec(spec)
    images = windowed("ppo", {"rgb": {"frames": 2}}, cnn_keys={"encoder": ["rgb"]})
    with pytest.raises(UserError, match=r"algo.windows.rgb: this key already has a frame stack; set env.frame_stack=1"):
        images.algo.check_spec(spec)
