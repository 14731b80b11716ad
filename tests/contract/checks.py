"""The checks of the conformance suite as parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore import conformance
from tests.soaking import soak

# Checks of state, policy, tracing and ranks; for an algorithm that shares code with another one that has all checks.
MAIN = (
    conformance.interrupted_equals_uninterrupted,
    conformance.a_loaded_policy_acts_alike,
    conformance.compiled_equals_eager,
    conformance.two_ranks_learn_as_one,
)


def conformance_checks() -> list[Any]:
    """Return all checks; the one that builds machine code, which takes minutes, runs with SOAK=1 only."""
    return [
        pytest.param(check, id=check.__name__, marks=soak if check is conformance.machine_code_equals_eager else ())
        for check in conformance.CHECKS
    ]


def conformance_cases(whole: str, *others: str) -> list[Any]:
    """Return pairs (algorithm, check): all checks of one algorithm, and those in `MAIN` of others that share its code.

    The remaining checks of the others run with SOAK=1 only.
    """
    cases = [
        pytest.param(whole, *case.values, id=f"{whole}-{case.id}", marks=case.marks) for case in conformance_checks()
    ]
    return cases + [
        pytest.param(algo, check, id=f"{algo}-{check.__name__}", marks=() if check in MAIN else soak)
        for algo in others
        for check in conformance.CHECKS
    ]
