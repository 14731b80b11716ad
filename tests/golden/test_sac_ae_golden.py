"""SAC-AE against the results of SheepRL (fixture: make_sac_ae_fixtures.py), and mutants."""

from __future__ import annotations

import pytest

from rlcore.algorithms.sac.sac_ae import learner  # noqa: F401  the functions that are changed
from tests.golden import sac_ae_oracle
from tests.golden.mutants import Mutant, changed, given, returned, swap

CHECK = ("check_updates",)
LEARNER, LOSS, BITS = "sac_ae.Learner", "reconstruction_loss", "five_bits"
CRITICS, OPTIMIZERS, UPDATE = f"{LEARNER}.step_critics", f"{LEARNER}._make_optimizers", f"{LEARNER}.update"
MUTANTS = (
    # Losses and the parts that they train.
    Mutant(
        "actor's gradient into the trunk",
        OPTIMIZERS,
        swap("agent.encoder.projection", "agent.encoder"),
        CHECK,
    ),
    Mutant(
        "decoder's loss does not train the encoder",
        f"{LEARNER}.decoder_objective",
        swap("self.critics.encoder(A)", "self.critics.encoder(A).detach()"),
        CHECK,
    ),
    Mutant(
        "critics' loss does not train the encoder",
        "Critics.outputs",
        swap("self.encoder(A)", "self.encoder(A).detach()"),
        CHECK,
    ),
    Mutant(
        "the actor's projection decoded",
        f"{LEARNER}.decoder_objective",
        swap("self.critics.encoder(A)", "self.agent.encoder(A)"),
        CHECK,
    ),
    # Update frequencies.
    Mutant("actor updated every step", UPDATE, swap("A.actor.per_rank_update_freq", "1"), CHECK),
    Mutant("decoder updated every step", UPDATE, swap("A.decoder.per_rank_update_freq", "1"), CHECK),
    Mutant("targets moved every step", UPDATE, swap("A.critic.per_rank_target_network_update_freq", "1"), CHECK),
    # Targets.
    Mutant("encoder's target as slow as the critics'", CRITICS, swap("A.encoder.tau * B", "A.tau * B"), CHECK),
    Mutant(
        "τ of encoder and critics swapped",
        CRITICS,
        swap("{A: config.encoder.tau * B, C: config.tau * D}", "{A: config.tau * B, C: config.encoder.tau * D}"),
        CHECK,
    ),
    Mutant(
        "online critics as targets", "sac.Learner.critic_objective", swap("self.target.module", "self.critics"), CHECK
    ),
    # The reconstruction.
    Mutant("no latent penalty", LOSS, given(l2_lambda="0.0"), CHECK),
    Mutant("no ½ in the latent penalty", LOSS, given(l2_lambda="2 * l2_lambda"), CHECK),
    Mutant("penalty as a mean over the latent", LOSS, swap("A.square().sum(1)", "A.square().mean(1)"), CHECK),
    Mutant("squared error summed", LOSS, swap("A.flatten(1).mean(1)", "A.flatten(1).sum(1)"), CHECK),
    Mutant(
        "no weight decay of the decoder",
        "sac_ae.Config.reconstruction_optimizer",
        swap("getattr(A, B)", "getattr(A, B) if B == 'lr' else 0.0"),
        CHECK,
    ),
    Mutant("targets of 8 bits", BITS, returned("(x + noise) / 256 - 0.5"), CHECK),
    Mutant("targets without noise", BITS, given(noise="0 * noise"), CHECK),
    Mutant("targets from 0 to 1", BITS, returned("it + 0.5"), CHECK),
    # The policy and α.
    Mutant("log std clamped", "sac_ae.Agent.limit", returned("log_std.clamp(-10, 2)"), CHECK),
    Mutant("α's loss in log α", f"{LEARNER}.alpha_objective", swap("A.log_alpha.exp()", "A.log_alpha"), CHECK),
    Mutant("pixels from -½", "Trunk._pixels", swap("A / 255", "A / 255 - 0.5"), CHECK),
)


def test_sac_ae_updates_match_sheeprl_in_float64() -> None:
    sac_ae_oracle.check_updates()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_sac_ae_mutant(mutant: Mutant) -> None:
    with (
        changed(mutant.function, mutant.change),
        pytest.raises((AssertionError, StopIteration)),
    ):  # StopIteration: noise is drawn too often
        sac_ae_oracle.check_updates()
