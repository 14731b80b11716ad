"""A loss that is not finite ends the run; the error names term, gradient step and last good checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.errors import RunError
from rlcore.train.run_trainer import RunTrainer
from tests.rlcore.train.test_run_trainer_pace import SAC
from tests.runs import SMALL_DREAMER, prepare


def session_that_breaks(folder: Path, at: int, **keys: Any) -> RunTrainer:
    session = RunTrainer(prepare(folder, "Pendulum-v1", 120, **SAC | {"checkpoint__every": 40} | keys))
    learner, update = session.learner, session.learner.update

    def breaking(*given: Any) -> Any:
        found = update(*given)
        if learner.updates >= at:  # later updates break as well, also in another term
            found["Loss/value_loss"] = torch.tensor(torch.nan)
        return found | ({"Loss/policy_loss": torch.tensor(torch.inf)} if learner.updates > at else {})

    learner.update = breaking
    return session


def test_save_refuses_and_names_term_that_is_not_finite(tmp_path: Path) -> None:
    session = session_that_breaks(tmp_path / "run", at=50)
    for _ in range(2):
        session.advance(lambda facts: None)
        if session.policy_steps == 40:
            session.save()
    last = session.run.checkpoints / "40"
    # 80 policy steps, the first 10 random: 71 gradient steps.
    with pytest.raises(
        RunError,
        match=r"not finite after 71 updates and 80 policy steps: \{'Loss/value_loss': nan\} at gradient step 50; "
        rf"the last good checkpoint is {re.escape(str(last))}",
    ):
        session.save()
    assert [path.name for path in session.run.checkpoints.iterdir() if path.name.isdecimal()] == ["40"]
    session.close()


def test_advance_refuses_term_that_is_not_finite(tmp_path: Path) -> None:
    session = session_that_breaks(tmp_path / "run", at=20, metric__log_every=16)
    with pytest.raises(RunError, match=r"\{'Loss/value_loss': nan\} at gradient step 20; no checkpoint yet"):
        session.advance(lambda facts: None)
    session.close()


def test_dreamer_run_names_loss_that_is_not_finite(tmp_path: Path) -> None:
    rows = {
        "algo__per_rank_batch_size": 2,
        "algo__per_rank_sequence_length": 4,
        "algo__horizon": 3,
        "metric__log_every": 16,
    }
    keys = {f"algo__{part}": keys for part, keys in SMALL_DREAMER.items()} | rows
    run = prepare(
        tmp_path / "run", total_steps=100, algo="dreamer_v3", algo__learning_starts=20, algo__replay_ratio=0.5, **keys
    )
    session = RunTrainer(run)
    learner, update = session.learner, session.learner.update

    def breaking(*given: Any) -> Any:
        if learner.updates == 7:
            with torch.no_grad():
                learner.agent.world.reward.output.bias.fill_(torch.inf)
        return update(*given)

    learner.update = breaking
    with pytest.raises(RunError, match=r"not finite after \d+ updates.*at gradient step 8; no checkpoint yet") as error:
        while not session.advance(lambda facts: None).done:
            pass
    named = set(re.findall(r"'([^']+)': (?:nan|inf)", str(error.value)))
    assert {"Loss/world_model_loss", "Loss/reward_loss", "Grads/world_model"} <= named
    assert not named & {
        "Loss/observation_loss",
        "Loss/state_loss",
        "State/kl",
    }  # terms that do not depend on the reward
    session.close()
