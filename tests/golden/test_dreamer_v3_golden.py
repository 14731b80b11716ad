"""Dreamer V3 against losses and gradients of SheepRL; each mutant fails the check named with it."""

from __future__ import annotations

import pytest

from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from tests.golden import dreamer_v3_oracle
from tests.golden.dreamer_v3_mutants import MUTANTS
from tests.golden.mutants import Mutant, changed
from tests.soaking import always, heavy

pytestmark = heavy


@always
@pytest.mark.parametrize("variant", dreamer_v3_oracle.VARIANTS)
def test_dreamer_v3_losses_and_gradients_match_sheeprl(variant: str) -> None:
    dreamer_v3_oracle.check_losses(dreamer_v3, variant)


def test_dreamer_v3_update_logs_metrics_of_sheeprl() -> None:
    dreamer_v3_oracle.check_update(dreamer_v3)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_dreamer_v3_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(dreamer_v3_oracle, name)(dreamer_v3, *arguments)
