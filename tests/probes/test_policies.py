"""Every kind of action and observation is learned to the known optimum, through the real loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from tests.golden.mutants import wrong
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
    """Mean return of the last 200 episodes while training, noise included."""
    return float(np.mean([episode.ret for episode in training.episodes[-200:]]))


def trained(env_id: str, total_steps: int, distribution: str = "auto", algo: Any = None, **env: Any) -> Trainer:
    settings = SMALL | {"total_steps": total_steps} | (algo or {})
    return assemble(env_id, settings, num_envs=4, distribution=distribution, **env).run(total_steps)


def signal(action: str, obs: str) -> Trainer:
    keys = {"mlp_keys": {"encoder": ["signal"]}} if obs == "dict" else {}
    return trained("known/Signal-v0", 2_000, algo=keys, wrapper={"action": action, "obs": obs})


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
def test_the_action_that_the_observation_asks_for_is_found(action: str, obs: str) -> None:
    # Random play earns 1/3 to 1/2, the best answer that looks at nothing 1/2 to 2/3, the right one 1.
    assert recent(signal(action, obs)) > 0.95


def test_a_key_that_the_agent_is_not_shown_cannot_be_learned_from() -> None:
    keys = {"mlp_keys": {"encoder": ["noise"]}}
    training = trained("known/Signal-v0", 2_000, algo=keys, wrapper={"action": "discrete", "obs": "dict"})
    assert recent(training) < 0.65


def test_advantage_of_the_wrong_sign_finds_the_worst_answer() -> None:
    with wrong("advantage of the wrong sign"):
        assert recent(signal("discrete", "box")) < 0.1


def generous(training: Trainer) -> float:
    agent = training.learner.agent
    _, action, _ = agent.act((), {"state": torch.ones(1, 1)}, torch.ones(1, dtype=torch.bool), None, True)
    return float(agent.to_env(action).detach().mean())


@pytest.mark.parametrize("state_dependent_std", [True, False])
@pytest.mark.parametrize("distribution", ["normal", "tanh_normal"])
def test_the_top_of_a_box_off_zero_is_reached_and_never_passed(distribution: str, state_dependent_std: bool) -> None:
    # The environment pays the action and refuses what lies outside [2, 5]; -1 to 1 would never leave 2.
    actor = SMALL["actor"] | {"state_dependent_std": state_dependent_std}
    training = trained("known/Generous-v0", 3_000, distribution, {"actor": actor})
    assert generous(training) > 4.8
    assert np.mean([e.ret for e in training.episodes[:50]]) < 4.0


def test_discrete_policy_for_a_box_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"distribution.type=discrete: not available for a Box action; must be one of auto, normal"
    ):
        assemble("known/Generous-v0", SMALL | {"total_steps": 1}, distribution="discrete")


def test_the_probes_are_what_they_say() -> None:
    # The right answers lie in their spaces, and 0, which a policy that forgets `start` would send, does not.
    for space, wanted in envs.ACTION_SPACES.values():
        assert all(space.contains(np.asarray(w, space.dtype)) for w in wanted)
    assert not envs.ACTION_SPACES["discrete"][0].contains(0)
    assert not envs.ACTION_SPACES["multi_discrete"][0].contains(np.zeros(2, np.int64))
