"""TensorBoard and CSV beside the log, read back by TensorBoard's and Python's own readers."""

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


def bring(run: RunDirectory, name: str) -> Path:
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


def test_tensorboard_shows_every_point_once_however_often_it_is_mirrored(run: RunDirectory) -> None:
    for _ in range(3):
        bring(run, "tensorboard")
    train(run, 4, 6)
    for _ in range(2):
        bring(run, "tensorboard")
    shown = tensorboard(run)
    assert shown["Rewards/rew_avg"] == [(100, 10.0), (200, 20.0), (300, 30.0), (400, 40.0), (500, 50.0)]
    assert shown["Loss/policy_loss"][0] == (100, -0.125)
    assert shown["Evaluation/random_mean"] == [(0, 21.5)]


def test_an_open_tensorboard_sees_what_is_added(run: RunDirectory) -> None:
    path = bring(run, "tensorboard")
    opened = path.stat().st_ino
    reader = EventAccumulator(str(run.path / "tensorboard"))
    reader.Reload()
    train(run, 4, 5)
    bring(run, "tensorboard")
    reader.Reload()
    assert [e.step for e in reader.Scalars("Rewards/rew_avg")] == [100, 200, 300, 400]
    assert path.stat().st_ino == opened  # continued, not replaced under the reader


def test_a_mirror_torn_by_a_kill_is_mended(run: RunDirectory) -> None:
    path = bring(run, "tensorboard")
    whole = path.read_bytes()
    for size in (len(whole) - 3, len(whole) // 2, 5, 0):
        path.write_bytes(whole[:size])
        bring(run, "tensorboard")
        assert path.read_bytes() == whole


def test_a_mirror_that_says_something_else_is_replaced(run: RunDirectory) -> None:
    path = bring(run, "csv")
    whole = path.read_bytes()
    path.write_bytes(b"policy_steps,Rewards/rew_avg\n100,999\n")
    bring(run, "csv")
    assert path.read_bytes() == whole


def test_an_evaluation_and_the_final_one_of_the_same_step_are_both_there(run: RunDirectory) -> None:
    log = EventLog(run.events)
    log.append("evaluation", policy_steps=300, final=False, greedy=RESULT | {"mean": 30.0})
    log.append("evaluation", policy_steps=300, final=True, greedy=RESULT | {"mean": 40.0}, stochastic=RESULT)
    bring(run, "tensorboard")
    shown = tensorboard(run)
    assert shown["Evaluation/greedy_mean"] == [(300, 30.0)]
    assert shown["Test/cumulative_reward"] == [(300, 40.0)]
    assert shown["Test/cumulative_reward_stochastic"] == [(300, 21.5)]
    bring(run, "csv")
    last = rows(run)[-1]
    names = ("Evaluation/greedy_mean", "Test/cumulative_reward", "Test/cumulative_reward_stochastic")
    assert (last["policy_steps"], *(last[name] for name in names)) == ("300", "30.0", "40.0", "21.5")


def test_csv_has_one_row_per_policy_steps_and_a_column_per_metric(run: RunDirectory) -> None:
    EventLog(run.events).append("evaluation", policy_steps=200, final=False, greedy=RESULT)
    for _ in range(2):
        bring(run, "csv")
    table = rows(run)
    assert [row["policy_steps"] for row in table] == ["0", "100", "200", "300"]
    assert table[2] == {
        "policy_steps": "200",
        "Evaluation/random_mean": "",
        "Rewards/rew_avg": "20.0",
        "Loss/policy_loss": "-0.25",
        "Evaluation/greedy_mean": "21.5",
    }


def test_csv_rows_ascend_though_the_last_evaluation_is_of_an_earlier_checkpoint(run: RunDirectory) -> None:
    EventLog(run.events).append("evaluation", policy_steps=150, final=True, greedy=RESULT)
    bring(run, "csv")
    assert [row["policy_steps"] for row in rows(run)] == ["0", "100", "150", "200", "300"]


def test_csv_keeps_every_digit(run: RunDirectory) -> None:
    EventLog(run.events).append("metrics", policy_steps=900, values={"Loss/value_loss": 0.1 + 0.2})
    bring(run, "csv")
    assert float(rows(run)[-1]["Loss/value_loss"]) == 0.1 + 0.2


def test_a_point_written_again_after_a_kill_is_there_once(run: RunDirectory) -> None:
    train(run, 2, 4)
    bring(run, "csv")
    bring(run, "tensorboard")
    assert len(rows(run)) == 4
    assert len(tensorboard(run)["Rewards/rew_avg"]) == 3


def test_nothing_is_left_beside_the_mirrors(run: RunDirectory) -> None:
    bring(run, "csv")
    bring(run, "tensorboard")
    names = {p.name for p in run.path.iterdir()}
    assert names == {"events.jsonl", "metrics.csv", "tensorboard"}
    assert len(list((run.path / "tensorboard").iterdir())) == 1


def test_every_logger_that_a_config_may_name_has_a_backend_or_none_to_write() -> None:
    for name in (*BACKENDS, "mlflow", "none"):
        assert build(LoggerConfig, {"name": name}, "metric.logger.").name == name
    with pytest.raises(UserError, match=r"metric\.logger\.name=tensorbord: .*did you mean 'tensorboard'"):
        build(LoggerConfig, {"name": "tensorbord"}, "metric.logger.")


@pytest.mark.parametrize("name", list(BACKENDS))
def test_what_is_new_is_brought_and_nothing_else_is_read_or_made_again(
    run: RunDirectory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look after the first costs what has come since; the file is that of a process which saw all at once."""
    news, log = NewEvents(run), EventLog(run.events)
    path = BACKENDS[name](run, news.read())
    assert isinstance(path, Path)
    monkeypatch.setattr(NewEvents, "everything", lambda self: pytest.fail("all points were read again"))
    read: list[int] = []
    real = events._event
    monkeypatch.setattr(events, "_event", lambda line: [read.append(1), real(line)][1])
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
    bring(run, name)
    assert path.read_bytes() == bits


@pytest.mark.parametrize("name", list(BACKENDS))
def test_bring_makes_the_same_file_by_small_pieces(
    run: RunDirectory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run, 4, 50)
    EventLog(run.events).append("evaluation", policy_steps=150, final=True, greedy=RESULT)  # out of order
    path = bring(run, name)
    whole = path.read_bytes()
    monkeypatch.setattr("flows.tracking.news.FEW", 3)  # the rest is read from the disk
    monkeypatch.setattr("flows.tracking.tensorboard_csv.PIECE", 4)
    for kept in (0, 5, len(whole) // 2, len(whole)):
        path.write_bytes(whole[:kept])
        assert bring(run, name).read_bytes() == whole


def test_csv_gets_new_columns_and_earlier_rows_while_a_run_is_trained(run: RunDirectory) -> None:
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
    assert bring(run, "csv").read_bytes() == grown


@pytest.mark.parametrize("name", list(BACKENDS))
def test_a_file_that_somebody_changed_is_mended_by_who_goes_on_with_it(run: RunDirectory, name: str) -> None:
    news = NewEvents(run)
    path = BACKENDS[name](run, news.read())
    assert isinstance(path, Path)
    path.write_bytes(path.read_bytes()[:-9])
    train(run, 4, 6)
    BACKENDS[name](run, news.read())
    mended = path.read_bytes()
    path.unlink()
    assert bring(run, name).read_bytes() == mended
