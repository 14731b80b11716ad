"""Dreamer V3 against SheepRL's own losses and gradients; and each wrong version fails the check named beside it."""

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
def test_losses_and_gradients_are_sheeprls(variant: str) -> None:
    dreamer_v3_oracle.check_losses(dreamer_v3, variant)


def test_an_update_logs_sheeprls_numbers_and_the_norms_of_its_gradients() -> None:
    dreamer_v3_oracle.check_update(dreamer_v3)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_noticed(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(dreamer_v3_oracle, name)(dreamer_v3, *arguments)
