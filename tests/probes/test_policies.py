"""Every kind of action and observation is learned to the known optimum, through the real training loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from tests.golden.test_ppo_golden import MUTANTS
from tests.learning.assembly import Trainer, assemble
from tests.probes import envs
from tests.soaking import always, heavy

pytestmark = heavy

SMALL = {
    "name": "ppo",
    "rollout_steps": 32,
    "per_rank_batch_size": 64,
    "update_epochs": 4,
    "gamma": 0.9,
    "normalize_advantages": True,
    "anneal_lr": True,
    "encoder": {"mlp_layers": 0},
    "actor": {"dense_units": 16, "mlp_layers": 1},
    "critic": {"dense_units": 16, "mlp_layers": 1},
    "optimizer": {"lr": 0.02},
}


def recent(training: Trainer) -> float:
    """Return the mean return of the last 200 training episodes, with sampled actions."""
    return float(np.mean([episode.ret for episode in training.episodes[-200:]]))


def train(env_id: str, total_steps: int, distribution: str = "auto", algo: Any = None, **env: Any) -> Trainer:
    settings = SMALL | {"total_steps": total_steps} | (algo or {})
    return assemble(env_id, settings, num_envs=4, distribution=distribution, **env).run(total_steps)


def signal(action: str, obs: str) -> Trainer:
    keys = {"mlp_keys": {"encoder": ["signal"]}} if obs == "dict" else {}
    return train("known/Signal-v0", 2_000, algo=keys, wrapper={"action": action, "obs": obs})


@always
@pytest.mark.parametrize(
    ("action", "obs"),
    [
        ("discrete", "box"),
        ("discrete", "discrete"),
        ("discrete", "dict"),
        ("multi_discrete", "box"),
        ("multi_binary", "box"),
    ],
)
def test_ppo_finds_action_that_observation_asks_for(action: str, obs: str) -> None:
    # Random actions earn 1/3 to 1/2, the best constant action 1/2 to 2/3, the right one 1.
    assert recent(signal(action, obs)) > 0.95


def test_ppo_cannot_learn_from_hidden_key() -> None:
    keys = {"mlp_keys": {"encoder": ["noise"]}}
    training = train("known/Signal-v0", 2_000, algo=keys, wrapper={"action": "discrete", "obs": "dict"})
    assert recent(training) < 0.65


def test_ppo_with_wrong_advantage_sign_finds_worst_action() -> None:
    with MUTANTS["advantage of the wrong sign"].applied():
        assert recent(signal("discrete", "box")) < 0.1


def generous(training: Trainer) -> float:
    agent = training.learner.agent
    _, action, _ = agent.act((), {"state": torch.ones(1, 1)}, torch.ones(1, dtype=torch.bool), None, True)
    return float(agent.to_env(action).detach().mean())


@pytest.mark.parametrize("state_dependent_std", [True, False])
@pytest.mark.parametrize("distribution", ["normal", "tanh_normal"])
def test_ppo_reaches_upper_bound_of_box(distribution: str, state_dependent_std: bool) -> None:
    # The reward is the action, and actions outside [2, 5] are refused; a range of -1 to 1 would always be clipped to 2.
    actor = SMALL["actor"] | {"state_dependent_std": state_dependent_std}
    training = train("known/Generous-v0", 3_000, distribution, {"actor": actor})
    assert generous(training) > 4.8
    assert np.mean([e.ret for e in training.episodes[:50]]) < 4.0


def test_discrete_policy_for_box_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"distribution.type=discrete: not available for a Box action; must be one of auto, normal"
    ):
        assemble("known/Generous-v0", SMALL | {"total_steps": 1}, distribution="discrete")


def test_probe_action_spaces_contain_right_actions() -> None:
    # The spaces contain the right actions, but not 0, which a policy that ignores `start` would send.
    for space, wanted in envs.ACTION_SPACES.values():
        assert all(space.contains(np.asarray(w, space.dtype)) for w in wanted)
    assert not envs.ACTION_SPACES["discrete"][0].contains(0)
    assert not envs.ACTION_SPACES["multi_discrete"][0].contains(np.zeros(2, np.int64))
