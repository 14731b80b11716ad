"""TensorBoard and CSV files of a run, read back by the readers of TensorBoard and Python."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flows.tracking.backends import BACKENDS
from flows.tracking.news import NewEvents
from rlcore.config.build import build
from rlcore.config.groups import LoggerConfig
from rlcore.errors import UserError
from rlcore.store import events
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog

RESULT = {"mean": 21.5, "std": 1.0, "ci95": [20.0, 23.0], "episodes": 10}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    log = EventLog(run.events)
    log.append("start", run_id="r", algo="ppo", env_id="CartPole-v1", seed=1)
    log.append("baseline", **RESULT)
    train(run, 1, 4)
    return run


def update(run: RunDirectory, name: str) -> Path:
    path = BACKENDS[name](run, NewEvents(run).read())
    assert isinstance(path, Path)
    return path


def train(run: RunDirectory, first: int, last: int) -> None:
    for k in range(first, last):
        values = {"Rewards/rew_avg": 10.0 * k, "Loss/policy_loss": -k / 8}
        EventLog(run.events).append("metrics", policy_steps=100 * k, values=values)


def tensorboard(run: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def rows(run: RunDirectory) -> list[dict[str, str]]:
    with open(run.path / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_tensorboard_repeated_update_writes_points_once(run: RunDirectory) -> None:
    for _ in range(3):
        update(run, "tensorboard")
    train(run, 4, 6)
    for _ in range(2):
        update(run, "tensorboard")
    shown = tensorboard(run)
    assert shown["Rewards/rew_avg"] == [(100, 10.0), (200, 20.0), (300, 30.0), (400, 40.0), (500, 50.0)]
    assert shown["Loss/policy_loss"][0] == (100, -0.125)
    assert shown["Evaluation/random_mean"] == [(0, 21.5)]


def test_tensorboard_open_reader_sees_appended_points(run: RunDirectory) -> None:
    path = update(run, "tensorboard")
    opened = path.stat().st_ino
    reader = EventAccumulator(str(run.path / "tensorboard"))
    reader.Reload()
    train(run, 4, 5)
    update(run, "tensorboard")
    reader.Reload()
    assert [e.step for e in reader.Scalars("Rewards/rew_avg")] == [100, 200, 300, 400]
    assert path.stat().st_ino == opened  # continued, not replaced under the reader


def test_tensorboard_repairs_truncated_file(run: RunDirectory) -> None:
    path = update(run, "tensorboard")
    whole = path.read_bytes()
    for size in (len(whole) - 3, len(whole) // 2, 5, 0):
        path.write_bytes(whole[:size])
        update(run, "tensorboard")
        assert path.read_bytes() == whole


def test_csv_replaces_foreign_content(run: RunDirectory) -> None:
    path = update(run, "csv")
    whole = path.read_bytes()
    path.write_bytes(b"policy_steps,Rewards/rew_avg\n100,999\n")
    update(run, "csv")
    assert path.read_bytes() == whole


def test_backends_keep_final_evaluation_at_same_step(run: RunDirectory) -> None:
    log = EventLog(run.events)
    log.append("evaluation", policy_steps=300, final=False, greedy=RESULT | {"mean": 30.0})
    log.append("evaluation", policy_steps=300, final=True, greedy=RESULT | {"mean": 40.0}, stochastic=RESULT)
    update(run, "tensorboard")
    shown = tensorboard(run)
    assert shown["Evaluation/greedy_mean"] == [(300, 30.0)]
    assert shown["Test/cumulative_reward"] == [(300, 40.0)]
    assert shown["Test/cumulative_reward_stochastic"] == [(300, 21.5)]
    update(run, "csv")
    last = rows(run)[-1]
    names = ("Evaluation/greedy_mean", "Test/cumulative_reward", "Test/cumulative_reward_stochastic")
    assert (last["policy_steps"], *(last[name] for name in names)) == ("300", "30.0", "40.0", "21.5")


def test_csv_has_row_per_step_column_per_metric(run: RunDirectory) -> None:
    EventLog(run.events).append("evaluation", policy_steps=200, final=False, greedy=RESULT)
    for _ in range(2):
        update(run, "csv")
    table = rows(run)
    assert [row["policy_steps"] for row in table] == ["0", "100", "200", "300"]
    assert table[2] == {
        "policy_steps": "200",
        "Evaluation/random_mean": "",
        "Rewards/rew_avg": "20.0",
        "Loss/policy_loss": "-0.25",
        "Evaluation/greedy_mean": "21.5",
    }


def test_csv_rows_ascend_after_earlier_final_evaluation(run: RunDirectory) -> None:
    EventLog(run.events).append("evaluation", policy_steps=150, final=True, greedy=RESULT)
    update(run, "csv")
    assert [row["policy_steps"] for row in rows(run)] == ["0", "100", "150", "200", "300"]


def test_csv_keeps_full_float_precision(run: RunDirectory) -> None:
    EventLog(run.events).append("metrics", policy_steps=900, values={"Loss/value_loss": 0.1 + 0.2})
    update(run, "csv")
    assert float(rows(run)[-1]["Loss/value_loss"]) == 0.1 + 0.2


def test_backends_write_repeated_points_once(run: RunDirectory) -> None:
    train(run, 2, 4)
    update(run, "csv")
    update(run, "tensorboard")
    assert len(rows(run)) == 4
    assert len(tensorboard(run)["Rewards/rew_avg"]) == 3


def test_backends_leave_no_temporary_files(run: RunDirectory) -> None:
    update(run, "csv")
    update(run, "tensorboard")
    names = {p.name for p in run.path.iterdir()}
    assert names == {"events.jsonl", "metrics.csv", "tensorboard"}
    assert len(list((run.path / "tensorboard").iterdir())) == 1


def test_logger_config_accepts_every_backend_name() -> None:
    for name in (*BACKENDS, "wandb", "mlflow", "none"):
        assert build(LoggerConfig, {"name": name}, "metric.logger.").name == name
    with pytest.raises(UserError, match=r"metric\.logger\.name=tensorbord: .*did you mean 'tensorboard'"):
        build(LoggerConfig, {"name": "tensorbord"}, "metric.logger.")


@pytest.mark.parametrize("name", list(BACKENDS))
def test_backend_update_reads_only_new_events(run: RunDirectory, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resulting file is the same as that of a process which wrote all events at once."""
    news, log = NewEvents(run), EventLog(run.events)
    path = BACKENDS[name](run, news.read())
    assert isinstance(path, Path)
    monkeypatch.setattr(NewEvents, "everything", lambda self: pytest.fail("all points were read again"))
    read: list[int] = []
    real = events.parse_event
    monkeypatch.setattr(events, "parse_event", lambda line: [read.append(1), real(line)][1])
    for k in range(4, 9):
        train(run, k, k + 1)
        BACKENDS[name](run, news.read())
        assert sum(read) == k - 3  # one line each time
    if name == "tensorboard":  # where a new metric is no new column
        log.append("evaluation", policy_steps=800, final=False, greedy=RESULT, wall_s=1.0)
        BACKENDS[name](run, news.read())
    monkeypatch.undo()
    bits = path.read_bytes()
    path.unlink()
    update(run, name)
    assert path.read_bytes() == bits


@pytest.mark.parametrize("name", list(BACKENDS))
def test_backend_update_in_pieces_writes_same_file(
    run: RunDirectory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run, 4, 50)
    EventLog(run.events).append("evaluation", policy_steps=150, final=True, greedy=RESULT)  # out of order
    path = update(run, name)
    whole = path.read_bytes()
    monkeypatch.setattr("flows.tracking.news.FEW", 3)  # the rest is read from the disk
    monkeypatch.setattr("flows.tracking.tensorboard_csv.PIECE", 4)
    for kept in (0, 5, len(whole) // 2, len(whole)):
        path.write_bytes(whole[:kept])
        assert update(run, name).read_bytes() == whole


def test_csv_update_adds_columns_and_earlier_rows(run: RunDirectory) -> None:
    news, log = NewEvents(run), EventLog(run.events)
    BACKENDS["csv"](run, news.read())
    for event in (
        {"policy_steps": 300, "final": False, "greedy": RESULT, "wall_s": 1.0},
        {"policy_steps": 150, "final": True, "greedy": RESULT},
        {"policy_steps": 300, "final": True, "greedy": RESULT | {"mean": 50.0}},
    ):
        log.append("evaluation", **event)
        path = BACKENDS["csv"](run, news.read())
        assert isinstance(path, Path)
    grown = path.read_bytes()
    assert [row["policy_steps"] for row in rows(run)] == ["0", "100", "150", "200", "300"]
    path.unlink()
    assert update(run, "csv").read_bytes() == grown


@pytest.mark.parametrize("name", list(BACKENDS))
def test_backend_update_repairs_changed_file(run: RunDirectory, name: str) -> None:
    news = NewEvents(run)
    path = BACKENDS[name](run, news.read())
    assert isinstance(path, Path)
    path.write_bytes(path.read_bytes()[:-9])
    train(run, 4, 6)
    BACKENDS[name](run, news.read())
    repaired = path.read_bytes()
    path.unlink()
    assert update(run, name).read_bytes() == repaired
