"""Report of the remaining time of gradient steps, once it is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.train.run_progress import spell_duration
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare

SAC = {
    "algo": "sac",
    "algo__hidden_size": 8,
    "algo__per_rank_batch_size": 4,
    "algo__learning_starts": 10,
    "env__num_envs": 1,
    "evaluation__every": 10_000,
    "checkpoint__every": 10_000,
}


def time_messages(folder: Path, caplog: pytest.LogCaptureFixture, **keys: Any) -> list[str]:
    session = RunTrainer(prepare(folder, "Pendulum-v1", 60, **SAC | keys))
    caplog.set_level("INFO")
    session.advance(lambda facts: None)
    session.close()
    return [record.getMessage() for record in caplog.records if "a gradient step takes" in record.getMessage()]


def test_advance_reports_remaining_time_after_second_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (line,) = time_messages(tmp_path / "run", caplog)
    assert "ms; the remaining 49 take about" in line  # 51 are planned from policy step 10 on
    caplog.clear()
    (line,) = time_messages(tmp_path / "rare", caplog, algo__train_every=20)
    assert "ms; the remaining 20 take about" in line


def test_advance_reports_no_time_without_second_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not time_messages(tmp_path / "run", caplog, algo__train_every=1_000)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2.0 min"), (7_300, "2.0 h"), (3 * 86_400, "3.0 days")]
)
def test_spell_duration_uses_suitable_unit(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text
