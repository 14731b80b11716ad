"""A change that does not apply to its function is refused."""

from __future__ import annotations

import pytest

from rlcore.algorithms.on_policy.ppo import learner  # noqa: F401  the functions that are changed
from tests.golden.mutants import changed, given, returned, swap


@pytest.mark.parametrize(
    ("function", "change", "says"),
    [
        ("ppo.policy_loss", swap("torch.minimum(A)", "A"), "policy_loss holds 0 times"),
        ("ppo.value_loss", swap("value_error(A, B, C)", "A"), "value_loss holds 2 times"),
        ("gae", given(lambda_="0"), "gae has no argument lambda_"),
        ("Optimizer.drop", returned("None"), "drop returns nothing"),
        ("no_such_function", returned("None"), "0 functions no_such_function"),
    ],
)
def test_changed_refuses_change_that_does_not_apply(function, change, says) -> None:
    with pytest.raises(AssertionError, match=says), changed(function, change):
        raise RuntimeError("not reached")
