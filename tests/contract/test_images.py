"""Agents with image observations, frame stacks and vectors pass the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import train_a_while
from tests.contract.checks import conformance_checks
from tests.contract.test_registry import ROUGH, SETTINGS
from tests.probes import envs  # noqa: F401  registers known/Picture-v0
from tests.soaking import heavy, soak

pytestmark = heavy

KEYS = {
    "mlp_keys": {"encoder": ["vector"]},
    "cnn_keys": {"encoder": ["image"]},
    "encoder": {"mlp_layers": 1, "dense_units": 8, "mlp_features_dim": 4, "cnn_features_dim": 8},
}


def config(algo: str) -> RunConfig:
    settings: dict[str, Any] = SETTINGS[algo] | KEYS
    env = EnvConfig(
        id="known/Picture-v0",
        num_envs=3,
        screen_size=None,
        frame_stack=3,
        frame_stack_dilation=2,
        wrapper={"length": 5},
    )
    return RunConfig(algo=build(ALGORITHMS[algo].Config, settings, "algo."), env=env, seed=0)


@pytest.mark.parametrize("check", conformance_checks())
def test_ppo_on_images_passes_conformance(check: Callable[[RunConfig], None]) -> None:
    check(config("ppo"))


@pytest.mark.parametrize(
    "check", [conformance.interrupted_equals_uninterrupted, conformance.compiled_equals_eager], ids=["kill", "compile"]
)
def test_a2c_on_images_passes_conformance(check: Callable[[RunConfig], None]) -> None:
    check(config("a2c"))


@pytest.mark.parametrize(
    "check",
    [
        conformance.interrupted_equals_uninterrupted,
        conformance.a_loaded_policy_acts_alike,
        pytest.param(conformance.compiled_equals_eager, marks=soak),
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("algo", ["sac", "droq", "crossq", "simba"])
def test_sac_family_on_images_passes_conformance(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(config_with_goal(algo))


def test_rollout_stores_each_image_frame_once() -> None:
    training = train_a_while(config("ppo"))
    steps, last = training.collector.collect(7)
    assert steps.obs["image"].dtype == last.obs["image"].dtype == steps.past["obs/image"].dtype
    assert str(steps.obs["image"].dtype) == "torch.uint8"
    assert steps.obs["image"].shape == (7, 3, 36, 36, 3) and last.obs["image"].shape == (3, 36, 36, 3)
    assert steps.past["obs/image"].shape == (4, 3, 36, 36, 3)  # three frames, every second one: four rows back
    assert steps.carry == () and set(steps.past) == {"obs/image", "is_first"}


def config_with_goal(algo: str) -> RunConfig:
    """Config with a frame stack of three (dilation 2) and a vector."""
    keys: dict[str, Any] = {"mlp_keys": {"encoder": ["state"]}, "cnn_keys": {"encoder": ["rgb"]}}
    keys |= {} if algo == "sac_ae" else {"encoder": KEYS["encoder"]}
    if algo == "crossq":  # the gradient of a bias before a batch normalization is pure rounding error
        keys |= {part: SETTINGS[algo][part] | {"optimizer": ROUGH} for part in ("actor", "critic")}
    frames = {"screen_size": None if algo == "sac_ae" else 36, "frame_stack": 3, "frame_stack_dilation": 2}
    env = EnvConfig(id="known/Dot-v0", num_envs=3, wrapper={"goal": True}, **frames)
    return RunConfig(algo=build(ALGORITHMS[algo].Config, SETTINGS[algo] | keys, "algo."), env=env, seed=0)


@pytest.mark.parametrize("check", conformance_checks())
def test_sac_ae_on_images_passes_conformance(check: Callable[[RunConfig], None]) -> None:
    check(config_with_goal("sac_ae"))


@pytest.mark.parametrize(
    "check",
    [
        conformance.interrupted_equals_uninterrupted,
        conformance.a_loaded_policy_acts_alike,
        conformance.compiled_equals_eager,
        conformance.two_ranks_learn_as_one,
    ],
    ids=lambda check: check.__name__,
)
def test_dreamer_v3_on_images_passes_conformance(check: Callable[[RunConfig], None]) -> None:
    check(config_with_vector("dreamer_v3", 16))


@pytest.mark.parametrize(
    "check",
    [
        conformance.a_loaded_policy_acts_alike,
        # Covered by test_conformance_dreamers.py (tracing) and the test above (images); both together take ten seconds.
        pytest.param(conformance.compiled_equals_eager, marks=soak),
        conformance.two_ranks_learn_as_one,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("algo", ["dreamer_v1", "dreamer_v2"])
def test_older_dreamers_on_images_pass_conformance(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(config_with_vector(algo, 64))


def config_with_vector(algo: str, side: int) -> RunConfig:
    world = SETTINGS[algo]["world_model"]
    small = {name: world[name] | {"cnn_channels_multiplier": 2} for name in ("encoder", "observation_model")}
    both = {"mlp_keys": {"encoder": ["state"]}, "cnn_keys": {"encoder": ["rgb"]}, "world_model": world | small}
    env = EnvConfig(id="multidiscrete_dummy", num_envs=3, screen_size=side, max_episode_steps=12)
    return RunConfig(algo=build(ALGORITHMS[algo].Config, SETTINGS[algo] | both, "algo."), env=env, seed=0)
