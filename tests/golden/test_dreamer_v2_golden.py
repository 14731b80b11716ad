"""Dreamer V2 against losses and gradients of SheepRL; each mutant fails the check named with it."""

from __future__ import annotations

import pytest

from rlcore.algorithms.dreamer.dreamer_v2 import learner as dreamer_v2
from tests.golden import dreamer_v2_oracle
from tests.golden.dreamer_v2_mutants import MUTANTS
from tests.golden.mutants import Mutant, changed
from tests.soaking import always, heavy

pytestmark = heavy


@always
@pytest.mark.parametrize("variant", dreamer_v2_oracle.VARIANTS)
def test_dreamer_v2_losses_and_gradients_match_sheeprl(variant: str) -> None:
    dreamer_v2_oracle.check_losses(dreamer_v2, variant)


def test_dreamer_v2_copies_target_critic_every_hundredth_step() -> None:
    dreamer_v2_oracle.check_copies(dreamer_v2)


def test_dreamer_v2_weight_decay_matches_sheeprl() -> None:
    dreamer_v2_oracle.check_decay(dreamer_v2)


def test_dreamer_v2_update_logs_metrics_of_sheeprl() -> None:
    dreamer_v2_oracle.check_update(dreamer_v2)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_dreamer_v2_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(dreamer_v2_oracle, name)(dreamer_v2, *arguments)
