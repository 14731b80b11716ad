"""Agents that see images, several frames of them, and vectors keep what all promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
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
def test_ppo_keeps_what_every_algorithm_promises(check: Callable[[RunConfig], None]) -> None:
    check(config("ppo"))


@pytest.mark.parametrize(
    "check", [conformance.interrupted_equals_uninterrupted, conformance.compiled_equals_eager], ids=["kill", "compile"]
)
def test_a2c_too(check: Callable[[RunConfig], None]) -> None:
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
def test_sac_and_those_of_its_learner_too_beside_a_vector(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(of_pictures_and_a_goal(algo))


def test_a_rollout_holds_what_the_environment_gave_and_each_frame_once() -> None:
    training = train_a_while(config("ppo"))
    steps, last = training.collector.collect(7)
    assert steps.obs["image"].dtype == last.obs["image"].dtype == steps.past["obs/image"].dtype
    assert str(steps.obs["image"].dtype) == "torch.uint8"
    assert steps.obs["image"].shape == (7, 3, 36, 36, 3) and last.obs["image"].shape == (3, 36, 36, 3)
    assert steps.past["obs/image"].shape == (4, 3, 36, 36, 3)  # three frames, every second one: four rows back
    assert steps.carry == () and set(steps.past) == {"obs/image", "is_first"}


def of_pictures_and_a_goal(algo: str) -> RunConfig:
    """Three frames, every second one, and a vector."""
    keys: dict[str, Any] = {"mlp_keys": {"encoder": ["state"]}, "cnn_keys": {"encoder": ["rgb"]}}
    keys |= {} if algo == "sac_ae" else {"encoder": KEYS["encoder"]}
    if algo == "crossq":  # a bias before a batch normalisation has a gradient that is nothing but rounding
        keys |= {part: SETTINGS[algo][part] | {"optimizer": ROUGH} for part in ("actor", "critic")}
    frames = {"screen_size": None if algo == "sac_ae" else 36, "frame_stack": 3, "frame_stack_dilation": 2}
    env = EnvConfig(id="known/Dot-v0", num_envs=3, wrapper={"goal": True}, **frames)
    return RunConfig(algo=build(ALGORITHMS[algo].Config, SETTINGS[algo] | keys, "algo."), env=env, seed=0)


@pytest.mark.parametrize("check", conformance_checks())
def test_sac_ae_too(check: Callable[[RunConfig], None]) -> None:
    check(of_pictures_and_a_goal("sac_ae"))


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
def test_dreamer_v3_too_beside_a_vector_and_with_several_actions(check: Callable[[RunConfig], None]) -> None:
    check(of_pictures_and_a_vector("dreamer_v3", 16))


@pytest.mark.parametrize(
    "check",
    [
        conformance.a_loaded_policy_acts_alike,
        # Traced they are in test_conformance.py, and pictures above: both together take ten seconds each.
        pytest.param(conformance.compiled_equals_eager, marks=soak),
        conformance.two_ranks_learn_as_one,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("algo", ["dreamer_v1", "dreamer_v2"])
def test_older_dreamers_too_of_the_one_size_that_they_see(algo: str, check: Callable[[RunConfig], None]) -> None:
    check(of_pictures_and_a_vector(algo, 64))


def of_pictures_and_a_vector(algo: str, side: int) -> RunConfig:
    world = SETTINGS[algo]["world_model"]
    small = {name: world[name] | {"cnn_channels_multiplier": 2} for name in ("encoder", "observation_model")}
    both = {"mlp_keys": {"encoder": ["state"]}, "cnn_keys": {"encoder": ["rgb"]}, "world_model": world | small}
    env = EnvConfig(id="multidiscrete_dummy", num_envs=3, screen_size=side, max_episode_steps=12)
    return RunConfig(algo=build(ALGORITHMS[algo].Config, SETTINGS[algo] | both, "algo."), env=env, seed=0)
