"""The checks notice what they are for: each wrong version of A2C fails the check that is named beside it."""

from __future__ import annotations

import pytest

from rlcore.algorithms.on_policy.a2c import learner as a2c
from tests.golden import a2c_oracle
from tests.golden.a2c_mutants import MUTANTS
from tests.golden.mutants import Mutant, changed


@pytest.mark.parametrize("check", sorted({mutant.check for mutant in MUTANTS}, key=str), ids=str)
def test_check_passes_on_the_code_as_it_is(check: tuple[str, ...]) -> None:
    name, *arguments = check
    getattr(a2c_oracle, name)(a2c, *arguments)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_noticed(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(a2c_oracle, name)(a2c, *arguments)
