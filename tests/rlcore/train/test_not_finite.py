"""A loss that is not finite ends the run: term, gradient step, last good checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.errors import RunError
from rlcore.train.session import Session
from tests.rlcore.train.test_pace import SAC
from tests.runs import prepare


def session_that_breaks(folder: Path, at: int, **keys: Any) -> Session:
    session = Session(prepare(folder, "Pendulum-v1", 120, **SAC | {"checkpoint__every": 40} | keys))
    learner, update = session.learner, session.learner.update

    def breaking(*given: Any) -> Any:
        found = update(*given)
        if learner.updates >= at:  # the next ones as well, and other terms by then
            found["Loss/value_loss"] = torch.tensor(torch.nan)
        return found | ({"Loss/policy_loss": torch.tensor(torch.inf)} if learner.updates > at else {})

    learner.update = breaking
    return session


def test_at_the_next_checkpoint_nothing_is_saved_and_the_term_is_named(tmp_path: Path) -> None:
    session = session_that_breaks(tmp_path / "run", at=50)
    for _ in range(2):
        session.advance(lambda facts: None)
        if session.policy_steps == 40:
            session.save()
    last = session.run.checkpoints / "40"
    # 80 policy steps, of which the first 10 at random: 71 gradient steps.
    with pytest.raises(
        RunError,
        match=r"not finite after 71 updates and 80 policy steps: \{'Loss/value_loss': nan\} at gradient step 50; "
        rf"the last good checkpoint is {re.escape(str(last))}",
    ):
        session.save()
    assert [path.name for path in session.run.checkpoints.iterdir() if path.name.isdecimal()] == ["40"]
    session.close()


def test_so_it_is_where_a_point_of_the_log_comes_first(tmp_path: Path) -> None:
    session = session_that_breaks(tmp_path / "run", at=20, metric__log_every=16)
    with pytest.raises(RunError, match=r"\{'Loss/value_loss': nan\} at gradient step 20; no checkpoint yet"):
        session.advance(lambda facts: None)
    session.close()
