"""Names of the metrics that each algorithm reports, which are checked in stop conditions before training."""

from __future__ import annotations

import pytest

from flows.config.compose import compose
from rlcore.conformance.trainings import FEW, fresh
from rlcore.errors import UserError
from rlcore.types import ALLOWED
from tests.contract.cases import ALWAYS, config
from tests.contract.test_registry import PAIRS
from tests.soaking import heavy

CASES = [
    pytest.param(*pair.values, id=pair.id, marks=() if pair.values in ALWAYS else (heavy, *pair.marks))
    for pair in PAIRS
]


@pytest.mark.parametrize(("algo", "env_id"), CASES)
def test_metric_names_are_those_that_are_reported(algo: str, env_id: str) -> None:
    training, reported, learned = fresh(config(algo, env_id)), set[str](), 0
    while learned < FEW:
        training.collect()
        metrics = training.take_gradient_steps()
        learned += bool(metrics)
        reported |= {name for update in (*metrics, training.metrics()) for name in update}
    known = training.config.algo.metric_names()
    assert known is not None and reported <= known
    # Only an exploration with a schedule, an algorithm with random actions, and action masks report these.
    amounts = {f"Params/exploration_amount{of}" for of in ("", "_task", "_exploration")}
    assert known - reported <= amounts | {"Params/random_actions", "Info/allowed_choices"}


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ppo_recurrent"])
def test_metric_names_contain_share_of_allowed_choices(algo: str) -> None:
    overrides = [f"exp={algo}", "env.id=CartPole-v1", f"stop=[{{upper_bound:{{metric:{ALLOWED},value:2}}}}]"]
    assert compose(overrides)[0].stop[0]["upper_bound"]["metric"] == ALLOWED
    with pytest.raises(UserError, match="does not report this metric"):
        compose([*overrides, "algo.action_masks=false"])
