"""SAC against the results of Stable-Baselines3 (fixture: make_sac_fixtures.py), and mutants."""

from __future__ import annotations

import pytest

from rlcore.algorithms.sac import learner as sac
from tests.golden import sac_oracle
from tests.golden.mutants import Mutant, changed, given, returned, swap

BASE, ENTROPY = (("check_update", variant) for variant in ("base", "target_entropy"))
THREE, STEPS = ("check_update", "three_critics"), ("check_n_step",)
TARGET, LEARNER = "soft_target", "sac.Learner"
MUTANTS = (
    # The critics' target.
    Mutant("no bootstrap", TARGET, returned("reward"), BASE),
    Mutant("highest critic", TARGET, swap("A.amin(0)", "A.amax(0)"), BASE),
    Mutant("mean of the critics", TARGET, swap("A.amin(0)", "A.mean(0)"), BASE),
    Mutant("first critic alone", TARGET, swap("A.amin(0)", "A[0]"), THREE),
    Mutant("no entropy in the target", TARGET, swap("A - alpha * B", "A"), BASE),
    Mutant("entropy of the wrong sign", TARGET, swap("A - alpha * B", "A + alpha * B"), BASE),
    Mutant("entropy outside of the discount", TARGET, returned("it - (1 - discount) * alpha * next_logprob"), BASE),
    Mutant(
        "online critics as targets", f"{LEARNER}.critic_objective", swap("self.target.module", "self.critics"), BASE
    ),
    Mutant(
        "next action without its tanh",
        f"{LEARNER}.critic_objective",
        swap("self.target.module(A, next_action.tanh(), B)", "self.target.module(A, next_action, B)"),
        BASE,
    ),
    Mutant("action without its tanh", f"{LEARNER}.critic_objective", swap("batch.action.tanh()", "batch.action"), BASE),
    Mutant(
        "no ½", "sac.critic_loss", swap("0.5 * A", "A"), BASE
    ),  # Adam is nearly invariant to it, the logged loss is not
    Mutant("mean over critics", "sac.critic_loss", swap("A.sum(0)", "A.mean(0)"), BASE),
    # The policy.
    Mutant("policy loss of the wrong sign", "sac.actor_loss", returned("-it"), BASE),
    Mutant("highest critic for the policy", "sac.actor_loss", swap("A.amin(0)", "A.amax(0)"), BASE),
    Mutant("no entropy for the policy", "sac.actor_loss", given(alpha="alpha * 0"), BASE),
    Mutant("no correction for the tanh", "TanhNormal.logprob", swap("A - log_tanh_slope(B).sum(-1)", "A"), BASE),
    Mutant(
        "correction of the wrong sign",
        "TanhNormal.logprob",
        swap("A - log_tanh_slope(B).sum(-1)", "A + log_tanh_slope(B).sum(-1)"),
        BASE,
    ),
    Mutant(
        "no gradient through the action",
        f"{LEARNER}.actor_objective",
        swap("policy.sample(noise)", "policy.sample(noise).detach()"),
        BASE,
    ),
    # The temperature.
    Mutant("α of the wrong sign", "alpha_loss", returned("-it"), BASE),
    Mutant("target entropy of the wrong sign", "alpha_loss", swap("A + target_entropy", "A - target_entropy"), BASE),
    Mutant("target entropy ignored", "AlphaConfig.target", swap("A.target_entropy", "None"), ENTROPY),
    Mutant(
        "α never learned", f"{LEARNER}.improve_actor", swap("self.alpha_optimizer.minimize(A, B).metrics", "{}"), BASE
    ),
    # Target networks.
    Mutant("targets never move", "Target.update", given(tau="0.0"), BASE),
    Mutant("targets jump", "Target.update", given(tau="1.0"), BASE),
    Mutant("τ the wrong way round", "Target.update", given(tau="1 - tau"), BASE),
    # Rows that count, and their weights.
    Mutant("a time limit ends the estimate", "n_step", swap("step.terminated", "step.done"), STEPS),
    Mutant("rewards after the end", "n_step", swap("step.reward * decay * reached", "step.reward * decay"), STEPS),
    Mutant("rewards undiscounted", "n_step", swap("step.reward * decay * reached", "step.reward * reached"), STEPS),
    Mutant("discounted by n whatever happened", "n_step", swap("gamma**count", "gamma**len(reached)"), STEPS),
    Mutant(
        "ends where the next episode goes on",
        "n_step",
        swap("A.long()", "torch.full_like(A, len(reached)).long()"),
        STEPS,
    ),
    Mutant("rows that only reset count", "n_step", swap("step.weight[0]", "torch.ones_like(count)"), STEPS),
)


@pytest.mark.parametrize("variant", sac_oracle.VARIANTS)
def test_sac_updates_match_sb3_in_float64(variant: str) -> None:
    sac_oracle.check_update(sac, variant)


def test_n_step_transitions_end_with_episode() -> None:
    sac_oracle.check_n_step(sac)


def test_target_entropy_of_zero_is_not_default() -> None:
    assert sac_oracle.make_learner(sac, "base").target_entropy == -2
    assert sac_oracle.make_learner(sac, "base", alpha={"target_entropy": 0.0}).target_entropy == 0


def test_fixed_alpha_has_no_optimizer() -> None:
    fixed, tuned = (sac_oracle.make_learner(sac, variant) for variant in ("fixed_alpha", "base"))
    assert tuned.components().keys() - fixed.components().keys() == {"alpha_optimizer"}
    fixed.load_state_dict(tuned.state_dict())  # a state of an earlier version


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_sac_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(sac_oracle, name)(sac, *arguments)
