"""Mutants of A2C: each wrong version fails the golden check that is named with it."""

from __future__ import annotations

import pytest

from rlcore.algorithms.on_policy.a2c import learner as a2c
from tests.golden import a2c_oracle
from tests.golden.a2c_mutants import MUTANTS
from tests.golden.mutants import Mutant, changed


@pytest.mark.parametrize("check", sorted({mutant.check for mutant in MUTANTS}, key=str), ids=str)
def test_golden_check_passes_on_correct_code(check: tuple[str, ...]) -> None:
    name, *arguments = check
    getattr(a2c_oracle, name)(a2c, *arguments)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_a2c_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(a2c_oracle, name)(a2c, *arguments)
