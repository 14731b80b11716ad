"""Loggers of plugins and W&B receive each point of a run once, from several processes, and cannot disturb a run."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli import main as cli
from flows.cli.train_command import next_commands
from flows.config.compose import compose
from flows.tracking import loggers, mirror, wandb_run
from flows.tracking.view_commands import view_commands
from rlcore import plugins
from rlcore.config.groups import LoggerConfig
from rlcore.config.loggers import LOGGERS
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import synthetic_run, train_a_while

PLUGIN = """
import json
from flows.tracking.loggers import register_logger

class Lines:
    def __init__(self, run, sent):
        self.path, self.address = run.path / "lines.jsonl", f"less {run.path}/lines.jsonl"
        self.write(sent=sent)

    def write(self, **facts):
        with open(self.path, "a") as file:
            file.write(json.dumps(facts) + chr(10))

    def log(self, policy_steps, values, time):
        self.write(steps=policy_steps, reward=values["Rewards/rew_avg"])

    def close(self, status):
        self.write(status=status)

register_logger("lines", Lines)
"""


def logged_run(folder: Path, name: str, **options: Any) -> RunDirectory:
    """A run with a logger; its log has points at 100, 200 and 300 policy steps."""
    logger = {"name": name, "experiment_name": None, "tracking_uri": None, **options}
    run = synthetic_run(folder, folder.name, metric={"log_level": 1, "logger": logger})
    train_a_while(run, 100, 400)
    return run


def end(run: RunDirectory, status: str = "finished") -> None:
    EventLog(run.events).append("end", status=status, policy_steps=400, reason=status)


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loggers that a test registers or opens are forgotten after it."""
    monkeypatch.setattr(loggers, "_FACTORIES", dict(loggers._FACTORIES))
    monkeypatch.setattr(loggers, "_OPEN", {})
    monkeypatch.setattr(LOGGERS, "_registered", dict(LOGGERS._registered))
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    sys.modules.pop("line_logger", None)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin with the logger `lines`, named for this process and its children."""
    (tmp_path / "line_logger.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "line_logger")


def lines(run: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "lines.jsonl").read_text().splitlines()]


def points(*steps: int) -> list[dict[str, Any]]:
    return [{"steps": step, "reward": float(step)} for step in steps]


def test_plugin_logger_receives_each_point_once(plugin: None, tmp_path: Path) -> None:
    run = logged_run(tmp_path / "run", "lines")
    loggers.send_points(run)
    loggers.send_points(run)
    train_a_while(run, 400, 500)
    end(run)
    loggers.send_points(run, last=True)
    assert lines(run) == [{"sent": 0}, *points(100, 200, 300, 400), {"status": "finished"}]
    assert loggers.address_of(run) == f"less {run.path}/lines.jsonl"
    loggers.send_points(run, last=True)  # there is nothing to send, so no logger is created
    assert len(lines(run)) == 6


def test_new_process_continues_after_sent_points(plugin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = logged_run(tmp_path / "run", "lines")
    loggers.send_points(run)
    monkeypatch.setattr(loggers, "_OPEN", {})  # as after a kill
    train_a_while(run, 400, 600)
    loggers.send_points(run, last=True)
    assert lines(run)[4:] == [{"sent": 3}, *points(400, 500), {"status": None}]


def test_new_run_in_same_folder_starts_at_first_point(plugin: None, tmp_path: Path) -> None:
    run = logged_run(tmp_path / "run", "lines")
    loggers.send_points(run)
    run.identity.write_text(run.identity.read_text().replace('"run"', '"other"'))
    loggers.send_points(run)
    assert lines(run)[4:] == [{"sent": 0}, *points(100, 200, 300)]


def test_failing_logger_is_noted_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []

    class Failing:
        def __init__(self, run: RunDirectory, sent: int) -> None:
            pass

        def log(self, policy_steps: int, values: Mapping[str, float], time: float) -> None:
            if policy_steps == 200 and received.count(100) == 1 and 200 not in received:
                received.append(200)
                raise ConnectionError("the server\nis away")
            received.append(policy_steps)

        def close(self, status: str | None) -> None:
            pass

    monkeypatch.setattr(mirror, "update_backends", lambda run: "")
    loggers.register_logger("failing", Failing)
    run = logged_run(tmp_path / "run", "failing")
    assert not mirror.update_or_warn(run)
    assert run.log.read_text().endswith("not all points were sent: logger failing: ConnectionError: the server\n")
    assert mirror.update_or_warn(run)
    assert received == [100, 200, 100, 200, 300]  # points since the last count are sent again


def test_logger_that_exits_does_not_end_process(tmp_path: Path) -> None:
    loggers.register_logger("leaving", lambda run, sent: sys.exit(3))
    with pytest.raises(RunError, match="logger leaving: .* raised SystemExit: 3"):
        loggers.send_points(logged_run(tmp_path / "run", "leaving"))


def test_logger_without_its_plugin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="metric.logger.name=lines: no plugin that is named has registered this logger"):
        loggers.send_points(logged_run(tmp_path / "run", "lines"))


def test_config_accepts_logger_of_plugin_only(plugin: None) -> None:
    chosen = ["exp=ppo", "metric.logger.name=lines", "metric.logger.options={level: 3}"]
    config, _ = compose(chosen)
    assert (config.metric.logger.name, config.metric.logger.options) == ("lines", {"level": 3})
    with pytest.raises(UserError, match="metric.logger.name=linse: must be one of tensorboard, .*did you mean 'lines'"):
        compose(["exp=ppo", "metric.logger.name=linse"])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "taken"])
def test_register_logger_refuses_name_in_use(name: str) -> None:
    loggers.register_logger("taken", loggers._FACTORIES["wandb"])
    with pytest.raises(UserError, match="another logger has this name"):
        loggers.register_logger(name, lambda run, sent: SimpleNamespace())


@pytest.mark.slow
def test_mirror_process_sends_points_to_plugin(plugin: None, home: Path, tmp_path: Path) -> None:
    run = logged_run(tmp_path / "run", "lines")
    end(run)
    assert mirror.finish_mirror(run)
    assert lines(run) == [{"sent": 0}, *points(100, 200, 300), {"status": "finished"}]


# Weights & Biases ----------------------------------------------------------------------------------------------------


def records(file: Path) -> Iterator[Any]:
    """Records of a file of W&B, which is a log of LevelDB with another header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record: Any = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def offline_files(run: RunDirectory) -> list[Path]:
    return sorted(run.path.glob("wandb/offline-run-*/run-*.wandb"))


def history_of(file: Path) -> list[dict[str, float]]:
    rows = []
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({name: items[name] for name in ("_step", "policy_steps", "Rewards/rew_avg")})
    return rows


def written_history(file: Path, count: int) -> list[dict[str, float]]:
    """The rows of a file, to which another process of W&B writes the last ones after the run has been finished."""
    deadline = time.monotonic() + 60
    while len(history_of(file)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return history_of(file)


def rows(*steps: int, first: int = 0) -> list[dict[str, float]]:
    return [{"_step": first + k, "policy_steps": s, "Rewards/rew_avg": float(s)} for k, s in enumerate(steps)]


@pytest.mark.slow
def test_wandb_offline_writes_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv(wandb_run.KEY, raising=False)
    run = logged_run(tmp_path / "run", "wandb", offline=True, project="cartpole", tags={"kind": "test"})
    loggers.send_points(run)
    train_a_while(run, 400, 500)
    loggers.send_points(run, last=True)
    (first,) = offline_files(run)
    assert written_history(first, 4) == rows(100, 200, 300, 400)
    (started,) = [record.run for record in records(first) if record.WhichOneof("record_type") == "run"][:1]
    assert (started.run_id, started.project, started.display_name) == ("run", "cartpole", "run")
    assert list(started.tags) == ["kind:test"]
    assert loggers.address_of(run) == f"wandb sync {first.parent}"
    train_a_while(run, 500, 600)  # a resumed run
    end(run)
    loggers.send_points(run, last=True)
    (second,) = set(offline_files(run)) - {first}
    assert written_history(second, 1) == rows(500, first=4)
    assert loggers.address_of(run) == f"wandb sync --append {second.parent}"


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Any]]:
    """A function that replaces W&B by a server that has received some points; its result lists all later calls."""

    def install(received: int) -> list[Any]:
        calls: list[Any] = []

        def init(**options: Any) -> SimpleNamespace:
            calls.append(options)
            return SimpleNamespace(
                starting_step=received,
                url="https://wandb.ai/me/p/runs/run",
                dir="files",
                summary={},
                define_metric=lambda *names, **options: None,
                log=lambda values, step: calls.append((step, values["policy_steps"])),
                finish=lambda exit_code: calls.append(exit_code),
            )

        module = SimpleNamespace(init=init, Settings=SimpleNamespace)
        monkeypatch.setitem(sys.modules, "wandb", module)
        monkeypatch.delenv(wandb_run.MODE, raising=False)
        return calls

    return install


@pytest.mark.parametrize(("received", "sent"), [(0, [100, 200, 300, 400]), (2, [300, 400]), (3, [400])])
def test_wandb_online_continues_after_points_of_server(
    received: int, sent: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_wandb: Any
) -> None:
    run = logged_run(tmp_path / "run", "wandb")
    fake_wandb(0)
    loggers.send_points(run)
    monkeypatch.setattr(loggers, "_OPEN", {})  # the process was killed before all points were uploaded
    train_a_while(run, 400, 500)
    end(run, "failed")
    calls = fake_wandb(received)
    loggers.send_points(run, last=True)
    options, *logged, code = calls
    assert (options["id"], options["resume"], options["settings"].mode) == ("run", "allow", "online")
    assert logged == [(received + k, steps) for k, steps in enumerate(sent)]
    assert code == 1
    assert next_commands(run)[2] == "https://wandb.ai/me/p/runs/run"


@pytest.fixture
def no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without credentials of W&B."""
    for name in (*wandb_run.CREDENTIALS, wandb_run.MODE, wandb_run.ADDRESS, "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(wandb_run, "find_spec", lambda name: object())


def test_missing_api_key_is_refused_unless_offline(no_key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no API key for api.wandb.ai; set WANDB_API_KEY, run `wandb login`, or add"):
        loggers.check_logger(LoggerConfig(name="wandb"))
    loggers.check_logger(LoggerConfig(name="wandb", offline=True))
    loggers.check_logger(LoggerConfig(name="wandb"), here=False)
    loggers.check_logger(LoggerConfig(name="csv"))
    monkeypatch.setenv(wandb_run.MODE, "offline")
    loggers.check_logger(LoggerConfig(name="wandb"))


@pytest.mark.parametrize(
    "line",
    [["train", "exp=ppo"], ["train", "exp=ppo", "seed=0,1", "group=pair"], ["stage", "make-env", "run", "exp=ppo"]],
)
def test_command_ends_before_run_exists_without_api_key(
    line: list[str], no_key: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert cli.main([*line, "logger=wandb"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no API key for api.wandb.ai" in said
    assert not [*Path.cwd().rglob("config.yaml")]


def test_api_key_is_found_in_environment_and_login_file(
    no_key: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine my.server login user password secret\n")
    with pytest.raises(UserError, match="no API key for api.wandb.ai"):
        loggers.check_logger(LoggerConfig(name="wandb"))
    monkeypatch.setenv(wandb_run.ADDRESS, "https://my.server:8080")
    loggers.check_logger(LoggerConfig(name="wandb"))
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv(wandb_run.KEY, "secret")
    loggers.check_logger(LoggerConfig(name="wandb"))


def test_missing_package_is_refused_with_install_command(no_key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_run, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"W&B is not installed; run: pip install -e '.\[wandb\]'"):
        loggers.check_logger(LoggerConfig(name="wandb", offline=True))


def test_next_commands_show_tensorboard_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = logged_run(tmp_path / "my run", "tensorboard")
    assert not any("tensorboard" in command for command in next_commands(run))
    (run.path / "tensorboard").mkdir()
    assert next_commands(run)[2].endswith("tensorboard --logdir 'my run/tensorboard'")


def test_view_commands_of_several_runs_name_common_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [logged_run(tmp_path / f"pair/seed={seed}", "tensorboard") for seed in (0, 1, 2)]
    assert view_commands(runs) == []
    for run in runs[:2]:
        (run.path / "tensorboard").mkdir()
    elsewhere = logged_run(tmp_path / "other", "wandb")
    (elsewhere.path / ".logger").mkdir()
    (elsewhere.path / ".logger/sent.json").write_text('{"address": "https://wandb.ai/me/p/runs/other"}')
    command, *addresses = view_commands([*runs, elsewhere])
    assert command.endswith("tensorboard --logdir pair") and addresses == ["https://wandb.ai/me/p/runs/other"]


@pytest.mark.parametrize(("log_level", "shown"), [(1, True), (0, False)])
def test_view_commands_show_how_to_send_points_that_failed(
    log_level: int, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = logged_run(tmp_path / "run", "wandb")
    run.config.write_text(run.config.read_text().replace("log_level: 1", f"log_level: {log_level}"))

    def refuse(*arguments: Any) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(loggers._FACTORIES, "wandb", refuse)
    with pytest.raises(RunError, match="no route to host"):
        loggers.send_points(run)
    commands = view_commands([run])
    assert bool(commands) == shown and all("python -m flows.tracking run  # no points" in line for line in commands)
