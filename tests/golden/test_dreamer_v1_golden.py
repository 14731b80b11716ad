"""Dreamer V1 against losses and gradients of SheepRL; each mutant fails the check named with it."""

from __future__ import annotations

import pytest

from rlcore.algorithms.dreamer.dreamer_v1 import learner as dreamer_v1
from tests.golden import dreamer_v1_oracle
from tests.golden.dreamer_v1_mutants import MUTANTS
from tests.golden.mutants import Mutant, changed
from tests.soaking import always, heavy

pytestmark = heavy


@always
@pytest.mark.parametrize("variant", dreamer_v1_oracle.VARIANTS)
def test_dreamer_v1_losses_and_gradients_match_sheeprl(variant: str) -> None:
    dreamer_v1_oracle.check_losses(dreamer_v1, variant)


def test_dreamer_v1_update_logs_metrics_of_sheeprl() -> None:
    dreamer_v1_oracle.check_update(dreamer_v1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_dreamer_v1_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(dreamer_v1_oracle, name)(dreamer_v1, *arguments)
