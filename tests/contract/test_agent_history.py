"""An agent that declares its own history windows is trained, resumed and served like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import FEW, fresh, run
from rlcore.spec import ACTION, EnvSpec, Window
from tests.contract.test_registry import SETTINGS
from tests.soaking import heavy

pytestmark = heavy

HISTORY = {"reward": Window(4), "state": Window(2, 2), ACTION: Window(3)}


class Remembering(ActorCritic):
    def __init__(self, config: Any, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__(config, spec, distribution, rng, HISTORY)


@pytest.fixture(params=["ppo CartPole-v1", "ppo Pendulum-v1", "a2c CartPole-v1"])
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    algo, env_id = request.param.split()
    module = {"ppo": ppo, "a2c": a2c}[algo]
    monkeypatch.setattr(module, "Agent", Remembering)
    monkeypatch.setattr(module.Learner, "agent_class", Remembering)
    keys = {"mlp_keys": {"encoder": ["state", "reward"]}, "normalize_obs": True, "compile": False}
    settings = build(ALGORITHMS[algo].Config, SETTINGS[algo] | keys, "algo.")
    env = EnvConfig(id=env_id, num_envs=3, max_episode_steps=12, reward_as_observation=True)
    return RunConfig(algo=settings, env=env, seed=0)


def test_agent_history_widens_encoder_and_counts_once(config: RunConfig) -> None:
    training = fresh(config)
    run(training)
    encoder, spec = training.learner.agent.encoder, training.envs.spec
    states, actions = spec.obs["state"].size, 1 if spec.action.continuous else 2
    assert encoder.size == 2 * states + 4 + 3 * actions
    moments = encoder.normalizer.moments
    assert moments.mean.shape == (states + 1,) and moments.count == FEW * 24 * 3


@pytest.mark.parametrize(
    "check",
    [
        conformance.interrupted_equals_uninterrupted,
        conformance.state_survives_a_checkpoint,
        conformance.a_loaded_policy_acts_alike,
        conformance.an_episodes_start_forgets,
    ],
    ids=lambda check: check.__name__,
)
def test_agent_history_passes_conformance(check: Callable[[RunConfig], None], config: RunConfig) -> None:
    check(config)
