"""An event log that was cut between sessions: the resumed run reports how many points are lost."""

from __future__ import annotations

import pytest

from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare


def train(run: RunDirectory, until: int) -> None:
    session = RunTrainer(run)
    while session.policy_steps < until:
        due = session.advance(lambda progress: None).due
        if "checkpoint" in due:
            session.save()
        if "evaluate" in due:
            session.evaluate()
    session.close()


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = prepare(tmp_path_factory.mktemp("trained") / "run", metric__log_every=64, evaluation__every=128)
    train(run, 128)
    train(run, 256)  # resumed
    return run


@pytest.mark.parametrize(("kept", "metrics", "evaluations"), [(1.0, 0, 0), (0.5, 2, 0), (0.0, 4, 1)])
def test_resume_reports_lost_events(
    trained_run: RunDirectory, caplog: pytest.LogCaptureFixture, kept: float, metrics: int, evaluations: int
) -> None:
    whole = trained_run.events.read_bytes()
    lines = whole.splitlines(keepends=True)
    names = [line.split(b'"kind": "', 1)[1].split(b'"')[0].decode() for line in lines]
    assert names.count("metrics") == 4 and names.count("evaluation") == 2
    half = names.index("resume") if kept == 0.5 else round(len(lines) * kept)
    trained_run.events.write_bytes(b"".join(lines[:half]))
    try:
        RunTrainer(trained_run).close()
    finally:
        trained_run.events.write_bytes(whole)
    messages = [record.getMessage() for record in caplog.records if "cut or damaged" in record.getMessage()]
    if not metrics:
        assert messages == []
    else:
        # The evaluation at the newest checkpoint was written after it.
        sentence = f"{metrics} metrics events and {evaluations} evaluations up to policy step 256 are lost"
        assert len(messages) == 1 and sentence in messages[0]
