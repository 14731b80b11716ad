"""Numbers of `info` in a run (`env.info_keys`): metrics, evaluations, resuming, stop conditions, missing names."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from rlcore.config.groups import MetricConfig
from rlcore.envs.vector.choose import check_batched_options
from rlcore.errors import UserError
from rlcore.run_config import build_config
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.train.info_check import ENOUGH, InfoKeyCheck
from rlcore.train.metrics import MetricsWindow
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.stop_conditions import StopConditions
from rlcore.train.stopping import UpperBound
from rlcore.types import Episode, Episodes
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.runs import prepare, values

# Episodes of 5 and 2 steps in turn. Means of x: 3 and 10; last w: 7 and missing.
INFOS = [[{"x": 1}, {"x": 2, "w": True}, {"x": 3}, {"x": 4}, {"x": 5, "w": 7}], [{"x": 9.5}, {"x": 10.5}]]
KEYS = ["x", "w:last", "never"]


def prepared(folder: Path, steps: int = 256, **more: Any) -> RunDirectory:
    given = {"env__wrapper": {"infos": INFOS}, "env__info_keys": KEYS, "checkpoint__every": 64, "metric__log_every": 64}
    return prepare(folder, "Probe/Informed-v0", steps, **given | {"evaluation__every": 128} | more)


def train(run: RunDirectory, saves: bool = True) -> str:
    """Train to the end as the stage does, and return the reason."""
    trainer = RunTrainer(run)
    while True:
        boundary = trainer.advance(lambda facts: None)
        if saves and "checkpoint" in boundary.due:
            trainer.save()
        if "evaluate" in boundary.due:
            trainer.evaluate()
        if boundary.reason is not None:
            trainer.close()
            return boundary.reason


def series(run: RunDirectory) -> list[tuple[int, dict[str, float]]]:
    events = [event for event in read_events(run.events) if event["kind"] == "metrics"]
    return [
        (e["policy_steps"], {k: v for k, v in e["values"].items() if k.startswith(("Game/", "Rew"))}) for e in events
    ]


def test_window_averages_over_the_episodes_that_have_the_number() -> None:
    window = MetricsWindow(MetricConfig(disable_timer=True))
    window.add([], [Episode(0, 1.0, 2, {"x": 1.0}), Episode(1, 1.0, 2), Episode(0, 1.0, 2, {"x": 4.0, "y": 2.0})])
    point = window.close(100, 0)
    assert (point["Game/x"], point["Game/y"], point["Game/ep_len_avg"]) == (2.5, 2.0, 2.0)


def test_run_logs_numbers_of_training_and_evaluation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = prepared(tmp_path / "run")
    assert train(run) == "finished"
    # The first window has 32 steps of each environment. Episodes of 5 steps end at the steps 5, 14, 23 and 32, those of
    # 2 steps at 8, 17 and 26, since each reset takes a step. Mean of x: (4 * 3 + 3 * 10) / 7 = 6. Only the former have
    # w.
    steps, first = series(run)[0]
    assert steps == 64 and first["Game/x"] == 6.0 and first["Game/w"] == 7.0 and "Game/never" not in first
    evaluation = next(event for event in read_events(run.events) if event["kind"] == "evaluation")["greedy"]
    # Two environments play one episode each. Both are first episodes of their environment.
    assert evaluation["info"]["x"] == {"mean": 3.0, "std": 0.0, "ci95": [3.0, 3.0], "episodes": 2, "values": [3.0, 3.0]}
    assert evaluation["info"]["w"]["values"] == [7.0, 7.0] and "never" not in evaluation["info"]
    assert caplog.text.count("env.info_keys: info never had never in the first") == 1


@pytest.mark.parametrize("sync_env", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_resumed_run_logs_the_same_numbers(tmp_path: Path, sync_env: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is in the middle of episodes (64 steps are 7 pairs of episodes and a step) and of a window."""
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.rlcore.envs.probe_envs")
    more = {"env__sync_env": sync_env, "checkpoint__every": 128, "metric__log_every": 150}
    whole, killed = (prepared(tmp_path / name, **more) for name in ("whole", "killed"))
    train(whole)
    first = RunTrainer(killed)
    assert first.advance(lambda facts: None).policy_steps == 128
    first.save()
    first.close()
    assert series(killed) == []
    train(killed)
    assert series(killed) == series(whole) and len(series(whole)) == 2
    found = [[e["greedy"] for e in read_events(run.events) if e["kind"] == "evaluation"] for run in (whole, killed)]
    assert found[0] == found[1] and found[0][0]["info"]["x"]["mean"] == 3.0


@pytest.mark.parametrize(
    ("metric", "ends"),
    [("Game/x", "upper_bound: Game/x = 6, which is at least 6"), ("Evaluation/greedy_w", "upper_bound: Evaluation/")],
)
def test_stop_condition_reads_numbers(tmp_path: Path, metric: str, ends: str) -> None:
    run = prepared(tmp_path / "run", stop=[{"upper_bound": {"metric": metric, "value": 6}}])
    assert train(run).startswith(ends)


def test_resumed_run_stops_after_the_evaluation_that_was_not_saved(tmp_path: Path) -> None:
    """The process dies after the evaluation is logged, and before the next checkpoint."""
    stop = [{"upper_bound": {"metric": "Evaluation/greedy_x", "value": 2.5}}]
    run = prepared(tmp_path / "run", stop=stop)
    first = RunTrainer(run)
    while "evaluate" not in first.advance(lambda facts: None).due:
        pass
    first.save()
    first.evaluate()
    first.close()
    resumed = RunTrainer(run)
    assert str(resumed.advance(lambda facts: None).reason).startswith("upper_bound: Evaluation/greedy_x = 3")
    resumed.close()


def test_stop_condition_on_other_number_names_info_keys() -> None:
    stop = [{"upper_bound": {"metric": "Game/is_success", "value": 1}}]
    with pytest.raises(UserError, match=r"ppo does not report this metric.*if env.info_keys contains its name"):
        build_config(values("CartPole-v1", 512, stop=stop, env__info_keys=["x"]))
    build_config(values("CartPole-v1", 512, stop=stop, env__info_keys=["is_success:last"]))


def test_batched_environment_refuses_info_keys() -> None:
    config = build_config(values("batched/CartPole-v1", 512, env__info_keys=["x"]))
    with pytest.raises(
        UserError, match=r"env.info_keys=\[x\]: batched/CartPole-v1 is a batched environment, which has no"
    ):
        check_batched_options(config)


def test_reduction_of_a_number_that_is_not_selected_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"Game/w": "max", "Game/vv": "max", "Rewards/rew_avg": "max"}
    config = build_config(values("CartPole-v1", 512, metric__aggregator__metrics=metrics)).metric
    window = MetricsWindow(config, ["w:last"])
    window.add([{"Loss/value_loss": 1.0}], [])
    window.close(100, 20)
    assert "does not log 'Game/vv' (did you mean 'Game/w'?)" in caplog.text


def test_condition_waits_for_a_number_that_comes_late() -> None:
    def conditions(*keys: str) -> StopConditions:
        return StopConditions([UpperBound("Game/x", 1)], info_keys=keys)

    late, unknown = conditions("x"), conditions()
    for updates in (1, 100):
        assert late.add_iteration({}, updates=updates) is None
    assert late.add_iteration({"Game/x": 1.0}, updates=101) is not None
    unknown.add_iteration({}, updates=1)
    with pytest.raises(UserError, match="Game/x: this training does not report this metric"):
        unknown.add_iteration({}, updates=100)


def test_missing_names_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def ended(count: int, **info: float) -> Episodes:
        return Episodes.of([Episode(0, 0.0, 1, info)] * count)

    check = InfoKeyCheck(["x", "y:last", "z"])
    check.add(ended(ENOUGH - 1, x=1.0))
    resumed = InfoKeyCheck(["x", "y:last", "z"])
    resumed.load_state_dict(json.loads(json.dumps(check.state_dict())))
    assert caplog.text == ""
    resumed.add(ended(1, z=math.pi))
    assert f"info never had y in the first {ENOUGH} episodes; Game/y is only logged" in caplog.text
    resumed.add(ended(50), last=True)
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.WARNING
    extended = InfoKeyCheck(["x", "misspelled"])
    extended.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
    extended.add(ended(ENOUGH, x=1.0))
    assert "info never had misspelled" in caplog.text


def test_missing_names_are_reported_at_the_end_of_a_short_run(caplog: pytest.LogCaptureFixture) -> None:
    short, empty = InfoKeyCheck(["x"]), InfoKeyCheck(["x"])
    empty.add(Episodes(), last=True)  # no episode has ended, so nothing is known
    assert caplog.text == ""
    short.add(Episodes.of([Episode(0, 0.0, 1)]), last=True)
    assert "info never had x in the first 1 episodes" in caplog.text
