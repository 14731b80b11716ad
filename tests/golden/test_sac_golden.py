"""SAC against the results of Stable-Baselines3 (tests.golden.makers.sac), and mutants."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from rlcore.algorithms.sac import learner as sac
from rlcore.types import Batch, Trajectory
from tests.golden.fixtures import arrays
from tests.golden.mutants import Mutant, given, returned, swap
from tests.golden.off_policy import SAC, check_updates, make_learner


@pytest.mark.parametrize("variant", SAC["variants"])
def test_sac_updates_match_sb3_in_float64(variant: str) -> None:
    noise = np.flip(arrays("sac")["noise"], 1).copy()  # SB3 draws that of the policy first
    check_updates(make_learner(variant), "sac", variant, noise)


def test_n_step_transitions_end_with_episode() -> None:
    """Three steps from row 0 of four episodes by hand; γ = ½, rewards 1, 2, 4 arrive with rows 1, 2, 3.

    The episode continues; terminates with row 1; is truncated with row 2; ended with row 0, which only resets.
    """
    ended = torch.zeros(4, 4, 2, dtype=torch.bool)  # [row, history, terminated or truncated]
    ended[1, 1, 0] = ended[2, 2, 1] = ended[0, 3, 0] = True
    obs = torch.arange(16.0).view(4, 4, 1)  # row t of history h: 4 t + h
    reward = torch.tensor([0.0, 1.0, 2.0, 4.0])[:, None].expand(4, 4)
    no = torch.zeros(4, 4, dtype=torch.bool)
    rows = [
        Trajectory({"state": obs[at]}, obs[at], reward[at], ended[at][..., 0], ended[at][..., 1], no[at])
        for at in (slice(0, 3), 3)
    ]
    result = sac.n_step(Batch(*rows, policy_steps=0), gamma=0.5)
    expected = {
        "reward": [1 + 1 + 1, 1, 1 + 1],  # 1 + 2/2 + 4/4; the first alone; the first two
        "discount": [0.125, 0.0, 0.25],
        "weight": [1, 1, 1],
    }
    for name, values in expected.items():
        assert getattr(result, name)[:3].tolist() == values, (name, getattr(result, name))
    assert result.obs["state"][:, 0].tolist() == [0, 1, 2, 3]
    assert result.next_obs["state"][:, 0].tolist()[:3] == [12, 5, 10]
    assert result.weight[3] == 0


def test_target_entropy_of_zero_is_not_default() -> None:
    assert make_learner("base").target_entropy == -2
    assert make_learner("base", alpha={"target_entropy": 0.0}).target_entropy == 0


def test_fixed_alpha_has_no_optimizer() -> None:
    fixed, tuned = (make_learner(variant) for variant in ("fixed_alpha", "base"))
    assert tuned.components().keys() - fixed.components().keys() == {"alpha_optimizer"}
    fixed.load_state_dict(tuned.state_dict())  # a state of an earlier version


# Mutants --------------------------------------------------------------------------------------------------------------

BASE = partial(test_sac_updates_match_sb3_in_float64, "base")
ENTROPY = partial(test_sac_updates_match_sb3_in_float64, "target_entropy")
THREE = partial(test_sac_updates_match_sb3_in_float64, "three_critics")
STEPS = test_n_step_transitions_end_with_episode

TARGET, LEARNER = "soft_target", "sac.Learner"
MUTANTS: dict[str, Mutant] = {
    # The critics' target.
    "no bootstrap": Mutant(TARGET, returned("reward"), BASE),
    "highest critic": Mutant(TARGET, swap("A.amin(0)", "A.amax(0)"), BASE),
    "mean of the critics": Mutant(TARGET, swap("A.amin(0)", "A.mean(0)"), BASE),
    "first critic alone": Mutant(TARGET, swap("A.amin(0)", "A[0]"), THREE),
    "no entropy in the target": Mutant(TARGET, swap("A - alpha * B", "A"), BASE),
    "entropy of the wrong sign": Mutant(TARGET, swap("A - alpha * B", "A + alpha * B"), BASE),
    "entropy outside of the discount": Mutant(TARGET, returned("it - (1 - discount) * alpha * next_logprob"), BASE),
    "online critics as targets": Mutant(
        f"{LEARNER}.critic_objective", swap("self.target.module", "self.critics"), BASE
    ),
    "next action without its tanh": Mutant(
        f"{LEARNER}.critic_objective",
        swap("self.target.module(A, next_action.tanh(), B)", "self.target.module(A, next_action, B)"),
        BASE,
    ),
    "action without its tanh": Mutant(f"{LEARNER}.critic_objective", swap("batch.action.tanh()", "batch.action"), BASE),
    "no ½": Mutant(
        "sac.critic_loss", swap("0.5 * A", "A"), BASE
    ),  # Adam is nearly invariant to it, the logged loss is not
    "mean over critics": Mutant("sac.critic_loss", swap("A.sum(0)", "A.mean(0)"), BASE),
    # The policy.
    "policy loss of the wrong sign": Mutant("sac.actor_loss", returned("-it"), BASE),
    "highest critic for the policy": Mutant("sac.actor_loss", swap("A.amin(0)", "A.amax(0)"), BASE),
    "no entropy for the policy": Mutant("sac.actor_loss", given(alpha="alpha * 0"), BASE),
    "no correction for the tanh": Mutant("TanhNormal.logprob", swap("A - log_tanh_slope(B).sum(-1)", "A"), BASE),
    "correction of the wrong sign": Mutant(
        "TanhNormal.logprob", swap("A - log_tanh_slope(B).sum(-1)", "A + log_tanh_slope(B).sum(-1)"), BASE
    ),
    "no gradient through the action": Mutant(
        f"{LEARNER}.actor_objective", swap("policy.sample(noise)", "policy.sample(noise).detach()"), BASE
    ),
    # The temperature.
    "α of the wrong sign": Mutant("alpha_loss", returned("-it"), BASE),
    "target entropy of the wrong sign": Mutant("alpha_loss", swap("A + target_entropy", "A - target_entropy"), BASE),
    "target entropy ignored": Mutant("AlphaConfig.target", swap("A.target_entropy", "None"), ENTROPY),
    "α never learned": Mutant(
        f"{LEARNER}.improve_actor", swap("self.alpha_optimizer.minimize(A, B).metrics", "{}"), BASE
    ),
    # Target networks.
    "targets never move": Mutant("Target.update", given(tau="0.0"), BASE),
    "targets jump": Mutant("Target.update", given(tau="1.0"), BASE),
    "τ the wrong way round": Mutant("Target.update", given(tau="1 - tau"), BASE),
    # Rows that count, and their weights.
    "a time limit ends the estimate": Mutant("n_step", swap("step.terminated", "step.done"), STEPS),
    "rewards after the end": Mutant("n_step", swap("step.reward * decay * reached", "step.reward * decay"), STEPS),
    "rewards undiscounted": Mutant("n_step", swap("step.reward * decay * reached", "step.reward * reached"), STEPS),
    "discounted by n whatever happened": Mutant("n_step", swap("gamma**count", "gamma**len(reached)"), STEPS),
    "ends where the next episode goes on": Mutant(
        "n_step", swap("A.long()", "torch.full_like(A, len(reached)).long()"), STEPS
    ),
    "rows that only reset count": Mutant("n_step", swap("step.weight[0]", "torch.ones_like(count)"), STEPS),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_sac_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
