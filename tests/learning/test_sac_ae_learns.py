"""SAC-AE moves a dot to the center of its image within seconds, and mutants do not.

Greedy returns (20 episodes) and reconstruction losses found after 500 steps; the random policy has 3.1:

    right, seeds 0 to 2                          8.2, 8.1, 8.4     0.016, 0.017, 0.019
    the actor's gradient in the convolutions     2.7, 2.8, 3.3     0.027, 0.026, 0.025
    no loss trains the encoder                   2.6               0.027
    policy loss of the wrong sign                1.1               0.025

The learning rate of the actor is ten times that of the paper: with 1e-3 its gradient does no harm to the encoder in
500 steps (8.3, 7.7). Fixed targets and a missing bootstrap pass here; the golden values detect them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from rlcore.algorithms.sac.sac_ae import learner  # noqa: F401  the functions that are changed
from tests.golden.mutants import Change, changed, returned, swap
from tests.learning.assembly import assemble
from tests.probes import envs  # noqa: F401  registers known/Dot-v0
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]
NETWORK: dict[str, Any] = {"hidden_size": 64}
DOT: dict[str, Any] = {
    "name": "sac_ae",
    "total_steps": 500,
    "learning_starts": 100,
    "per_rank_pretrain_steps": 0,
    "per_rank_batch_size": 32,
    "gamma": 0.9,
    "mlp_keys": {"encoder": []},
    "cnn_keys": {"encoder": ["rgb"]},
    "actor": NETWORK | {"optimizer": {"lr": 1e-2}},
    "critic": NETWORK,
}
ENOUGH, CLEAR = 6.0, 0.022
MISTAKES: dict[str, dict[str, Change]] = {
    "the actor's gradient in the convolutions": {
        "sac_ae.Learner._make_optimizers": swap("agent.encoder.projection", "agent.encoder")
    },
    "no loss trains the encoder": {
        "sac_ae.Learner.decoder_objective": swap("self.critics.encoder(A)", "self.critics.encoder(A).detach()"),
        "Critics.outputs": swap("self.encoder(A)", "self.encoder(A).detach()"),
    },
    "policy loss of the wrong sign": {"sac.actor_loss": returned("-it")},
}


def dot(seed: int) -> tuple[float, float]:
    """Return the mean of 20 greedy episodes and of the last 20 reconstruction losses."""
    training = assemble("known/Dot-v0", DOT, seed=seed, num_envs=1, screen_size=None).run(DOT["total_steps"])
    losses = [metrics["Loss/reconstruction_loss"] for metrics in training.metrics[-20:]]
    return training.evaluate(episodes=20)["mean"], sum(losses) / len(losses)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=soak) for seed in (1, 2))])
def test_sac_ae_moves_dot_to_center(seed: int) -> None:
    found, loss = dot(seed)
    assert found > ENOUGH and loss < CLEAR


@pytest.mark.parametrize(
    "mistake", [*list(MISTAKES)[:2], *(pytest.param(name, marks=soak) for name in list(MISTAKES)[2:])]
)
def test_sac_ae_mutant_does_not_learn(mistake: str) -> None:
    with ExitStack() as stack:
        for function, change in MISTAKES[mistake].items():
            stack.enter_context(changed(function, change))
        found, loss = dot(0)
    assert found < ENOUGH and loss > CLEAR
