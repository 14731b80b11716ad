"""The golden checks notice what they are for: each wrong version of PPO fails the check that is named beside it."""

from __future__ import annotations

import pytest

from tests.golden import oracle
from tests.golden.mutants import MUTANTS, Mutant, executed


def fails(check: tuple[str, ...], *replacement: str) -> bool:
    """Whether a check fails on the code with a replacement (or as it is)."""
    name, *arguments = check
    with executed(*replacement) as module:
        try:
            getattr(oracle, name)(module, *arguments)
        except AssertionError:
            return True
        return False


@pytest.mark.parametrize("check", sorted({m.check for m in MUTANTS}), ids="-".join)
def test_right_code_passes(check: tuple[str, ...]) -> None:
    assert not fails(check)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_noticed(mutant: Mutant) -> None:
    assert fails(mutant.check, mutant.module, mutant.right, mutant.wrong), f"{mutant.name} went unnoticed"


def test_a_replacement_that_no_longer_applies_is_an_error() -> None:
    with pytest.raises(AssertionError, match="holds 0 times"), executed("rlcore.algorithms.ppo", "no such source", ""):
        raise RuntimeError("not reached")
