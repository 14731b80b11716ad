"""DroQ, CrossQ and SimBa against sb3-contrib and published formulas, and mutants."""

from __future__ import annotations

import pytest

from rlcore.algorithms.sac import learner as sac
from tests.golden import sac_family_oracle
from tests.golden.mutants import Mutant, changed, given, returned, swap

NORM, RENORM = (("check_crossq", variant) for variant in ("batch_norm", "renorm"))
DROQ, SIMBA, BINS = (("check_family", name) for name in ("droq", "simba", "categorical"))
CRITIC = "sac.Learner.critic_objective"
OF_BATCH, HIDDEN, BLOCK = "BatchNorm._of_batch", "mlp.hidden_layer", "ResidualBlock.forward"
MUTANTS = (
    # Batch normalization and renormalization.
    Mutant("running statistics in the loss", "BatchNorm.forward", given(ranks="None"), NORM),
    Mutant(
        "unbiased variance",
        OF_BATCH,
        swap("sum_over(A, B.square().sum(0)) / count", "sum_over(A, B.square().sum(0)) / (count - 1)"),
        NORM,
    ),
    Mutant("statistics that stand still", OF_BATCH, swap("SHARE * (mean - self.mean)", "0 * mean"), NORM),
    Mutant("a variance that stands still", OF_BATCH, swap("SHARE * (variance - A)", "0 * variance"), NORM),
    Mutant("no count of batches", OF_BATCH, swap("self.count + 1", "self.count + 0"), NORM),
    Mutant("never renormalised", OF_BATCH, swap("self.count > self.warmup", "self.count < 0"), RENORM),
    Mutant("renormalised at once", OF_BATCH, swap("self.count > self.warmup", "self.count >= 0"), NORM),
    Mutant("renormalised a batch early", OF_BATCH, swap("A > self.warmup", "A >= self.warmup"), RENORM),
    Mutant("r upside down", OF_BATCH, swap("std / running", "running / std"), RENORM),
    Mutant("r not clipped", OF_BATCH, swap("A.clamp(1 / R_MAX, R_MAX)", "A"), RENORM),
    Mutant("r clipped from above alone", OF_BATCH, swap("1 / R_MAX", "0.0"), RENORM),
    Mutant("d not clipped", OF_BATCH, swap("A.clamp(-D_MAX, D_MAX)", "A"), RENORM),
    Mutant("d dropped", OF_BATCH, swap("A * (r / std) + d", "A * (r / std)"), RENORM),
    Mutant(
        "the batch's mean for actions", "BatchNorm.forward", swap("x - self.mean", "x - x.mean(0)"), ("check_acting",)
    ),
    # No targets: both batches through the critics at once.
    Mutant("the halves of the joint batch exchanged", CRITIC, swap("A.chunk(2, 1)", "A.flip(1).chunk(2, 1)"), NORM),
    Mutant("a gradient through the target", CRITIC, swap("next_q.detach()", "next_q"), NORM),
    Mutant(
        "the policy's loss moves the critics' statistics",
        "sac.Learner.actor_objective",
        swap("self.critics(A, B, masks)", "self.critics(A, B, masks, self.ranks)"),
        NORM,
    ),
    Mutant(
        "the policy's own statistics stand still",
        "sac.Learner.actor_objective",
        swap("self.agent(A, self.ranks)", "self.agent(A)"),
        NORM,
    ),
    Mutant(
        "the target moves the policy's statistics",
        CRITIC,
        swap("self.agent(batch.next_obs)", "self.agent(batch.next_obs, self.ranks)"),
        NORM,
    ),
    # The policy's delay.
    Mutant("no delay", "sac.Config.delay", returned("1"), NORM),
    Mutant("a policy that never learns", "sac.Config.delay", returned("10**6"), NORM),
    Mutant(
        "the first of each, not the last",
        "sac.Learner.update",
        swap("self.updates % self.delay", "(self.updates - 1) % self.delay"),
        NORM,
    ),
    # DroQ.
    Mutant("nothing dropped", "Dropout.forward", given(rng="None"), DROQ),
    Mutant("what is kept is not scaled", "Dropout.forward", swap("A / (1 - self.p)", "A"), DROQ),
    Mutant("dropped where it is to be kept", "Dropout.forward", swap("A.to(B)", "(1 - A).to(B)"), DROQ),
    Mutant(
        "no dropout in the targets",
        CRITIC,
        swap("self.target.module(A, B, target_masks)", "self.target.module(A, B, 0 * target_masks + 1)"),
        DROQ,
    ),
    Mutant(
        "the critics' masks in the targets",
        CRITIC,
        swap("self.target.module(A, B, target_masks)", "self.target.module(A, B, masks)"),
        DROQ,
    ),
    Mutant(
        "no dropout for the policy",
        "sac.Learner.actor_objective",
        swap("self.critics(A, B, masks)", "self.critics(A, B, 0 * masks + 1)"),
        DROQ,
    ),
    Mutant("lowest critic for the policy", "sac.actor_loss", swap('kind == "min"', "True"), DROQ),
    Mutant("mean of the critics in the target", "soft_target", swap("A.amin(0)", "A.mean(0)"), DROQ),
    Mutant("no LayerNorm", HIDDEN, given(layer_norm="False"), DROQ),
    Mutant("targets that stand still", "Target.update", given(tau="0.0"), DROQ),
    # SimBa.
    Mutant("observations as they are", "sac.Learner.update", swap("self.agent.encoder.observe(A, B)", "None"), SIMBA),
    Mutant(
        "statistics of the last batch alone",
        "RunningMoments.update",
        swap("self.count + count", "count + 0 * self.count"),
        SIMBA,
    ),
    Mutant(
        "unbiased running variance",
        "RunningMoments.update",
        swap("total(A.square().sum(0)) / count", "total(A.square().sum(0)) / (count - 1)"),
        SIMBA,
    ),
    Mutant("no residual", BLOCK, swap("x + A", "A"), SIMBA),
    Mutant("no LayerNorm in a block", BLOCK, swap("self.norm(x)", "x"), SIMBA),
    Mutant("no activation in a block", BLOCK, swap("self.act(A)", "A"), SIMBA),
    Mutant("target entropy not halved", "AlphaConfig.target", swap("A.target_entropy_scale", "1.0"), SIMBA),
    Mutant("mean of the critics for the policy", "sac.actor_loss", swap('kind == "min"', "False"), SIMBA),
    # Categorical critics; the two-hot code has its own tests.
    Mutant("squared error of bins", CRITIC, swap("A if form else B", "B"), BINS),
    Mutant("one critic learns", "sac.categorical_critic_loss", swap("A.sum(0)", "A[0]"), BINS),
    Mutant(
        "a most probable bin, not the mean",
        "Critics.read",
        swap("A.mean(outputs)", "outputs.argmax(-1).to(outputs)"),
        BINS,
    ),
)


@pytest.mark.parametrize("variant", ["batch_norm", "renorm"])
def test_crossq_matches_sb3_contrib_in_float64(variant: str) -> None:
    sac_family_oracle.check_crossq(sac, variant)


def test_crossq_acting_uses_running_statistics() -> None:
    sac_family_oracle.check_acting(sac)


@pytest.mark.parametrize("name", ["droq", "simba", "categorical"])
def test_sac_variant_updates_match_published_formulas(name: str) -> None:
    sac_family_oracle.check_family(sac, name)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_sac_family_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises((AssertionError, KeyError)):
        getattr(sac_family_oracle, name)(sac, *arguments)
