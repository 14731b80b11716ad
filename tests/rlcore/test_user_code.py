"""User code that would end this process, or changes its working directory."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flows.process.signals import TrainingInterrupted, terminable
from flows.runs.create import new_run
from rlcore import plugins
from rlcore.config.groups import EnvConfig
from rlcore.envs.card import environment_card
from rlcore.envs.make import make
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.limited import limited_env
from rlcore.envs.vector.watchdog import StepTimeout
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.evaluation.video import record
from rlcore.train.calls import call
from rlcore.user_code import is_failure, user_code


def leave() -> None:
    sys.exit(0)


def interrupt() -> None:
    raise KeyboardInterrupt


def end_generator() -> None:
    raise GeneratorExit


LEAVES = {"SystemExit: 0": leave, "KeyboardInterrupt": interrupt, "GeneratorExit": end_generator}


class Leaver(gymnasium.Env):
    """Environment that calls function `how` in method `where`."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own form
    where, how = "", staticmethod(leave)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.maybe("init")

    def maybe(self, name):
        if type(self).where == name:
            type(self).how()

    def reset(self, *, seed=None, options=None):
        self.maybe("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.maybe("step")
        return np.zeros(2, np.float32), 0.0, False, True, {}

    def render(self):
        self.maybe("render")
        return np.zeros((2, 2, 3), np.uint8)

    def close(self):
        self.maybe("close")


@pytest.fixture(autouse=True)
def leaver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register environment `Leaver-v0`, and handle Ctrl-C as a process of Shepherd does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    gymnasium.register("Leaver-v0", entry_point=f"{__name__}:Leaver")
    monkeypatch.setattr(Leaver, "where", "")
    yield
    del gymnasium.registry["Leaver-v0"]
    signal.signal(signal.SIGINT, before)


def where(monkeypatch: pytest.MonkeyPatch, place: str, name: str) -> None:
    monkeypatch.setattr(Leaver, "where", place)
    monkeypatch.setattr(Leaver, "how", staticmethod(LEAVES[name]))


def test_is_failure_is_false_for_ctrl_c() -> None:
    assert all(map(is_failure, (ValueError(), SystemExit(), KeyboardInterrupt())))
    assert not any(map(is_failure, (TrainingInterrupted(), StepTimeout(), GeneratorExit())))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert not is_failure(KeyboardInterrupt())


def test_user_code_restores_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFault, match=rf"raised SystemExit: 3 \({__file__}, line \d+\)"), user_code():
        os.chdir("/")
        raise SystemExit(3)
    assert Path.cwd() == tmp_path


def test_user_code_permits_to_close_generator() -> None:
    def generate() -> Iterator[int]:
        with user_code():
            yield 1

    numbers = generate()
    assert next(numbers) == 1
    numbers.close()  # would raise if user_code had converted GeneratorExit


def test_user_code_forwards_signals() -> None:
    with pytest.raises(TrainingInterrupted), terminable(), user_code():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("place", ["init", "reset", "step"])
def test_vector_env_names_call_that_raises_exit(monkeypatch: pytest.MonkeyPatch, place: str, name: str) -> None:
    where(monkeypatch, place, name)
    with pytest.raises((UserError, EnvironmentFault), match=rf"cannot be created \({name}\)|{place} raised {name}"):
        envs = make_vector_env(EnvConfig(id="Leaver-v0"), num_envs=2, seed=0)
        envs.reset()
        envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("name", LEAVES)
def test_vector_env_close_warns_about_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    where(monkeypatch, "close", name)
    make_vector_env(EnvConfig(id="Leaver-v0"), num_envs=1, seed=0).close()
    assert f"close raised {name}" in caplog.text


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("place", ["init", "reset", "step", "close"])
def test_environment_card_names_exit_exception(monkeypatch: pytest.MonkeyPatch, place: str, name: str) -> None:
    where(monkeypatch, place, name)
    with pytest.raises((UserError, EnvironmentFault), match=rf"{name}"):
        environment_card(EnvConfig(id="Leaver-v0"))


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("place", ["init", "close"])
def test_new_run_refuses_environment_that_exits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, name: str
) -> None:
    where(monkeypatch, place, name)
    with pytest.raises(UserError, match=rf"^env.id=Leaver-v0.*{name}"):
        new_run(["exp=ppo", "env.id=Leaver-v0", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", LEAVES)
def test_record_names_render_that_raises_exit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    where(monkeypatch, "render", name)
    with (
        pytest.raises(UserError, match=rf"^Leaver-v0: render\(\) failed on this machine \({name}\)"),
        limited_env(EnvConfig(id="Leaver-v0"), "rgb_array") as env,
    ):
        record(lambda: lambda obs: 0, env, tmp_path / "film.mp4", [0], 10)


@pytest.mark.parametrize("name", LEAVES)
def test_import_plugin_names_exit_exception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("leaves_at_import.py").write_text(f"raise {name.partition(':')[0]}({name.partition(':')[2]})")
    with pytest.raises(UserError, match=rf"^plugins=leaves_at_import: .*\({name}"):
        plugins.import_plugin("leaves_at_import")


@pytest.mark.parametrize("name", LEAVES)
def test_call_reports_function_that_raises_exit(name: str) -> None:
    answer: dict[str, str] = {}
    function = f"{__name__}.{LEAVES[name].__name__}_when_called"
    call(function, [], lambda event, **fields: answer.update(event=event, **fields))
    assert answer["event"] == "failed" and name in answer["sentence"]


def leave_when_called(say: object) -> None:
    leave()


def interrupt_when_called(say: object) -> None:
    interrupt()


def end_generator_when_called(say: object) -> None:
    end_generator()


def test_limited_env_stops_hanging_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaver, "where", "init")
    monkeypatch.setattr(Leaver, "how", staticmethod(lambda: signal.pause()))
    slow = limited_env(EnvConfig(id="Leaver-v0", step_timeout=0.05))
    with pytest.raises(RunError, match=r"^hung; no answer within 0.5 s \(env.step_timeout\)"), slow:
        pass


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_make_refuses_space_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Leaver, name, None)
    with pytest.raises(UserError, match=f"^env.id=Leaver-v0: its {name} is None, not a space of gymnasium.spaces"):
        make(EnvConfig(id="Leaver-v0"))


def test_user_code_survives_removed_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with user_code():
        (tmp_path / "gone").mkdir()
        os.chdir("gone")
        Path.cwd().rmdir()
        with user_code():
            pass
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_make_refuses_space_that_raises(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(env: Leaver) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(Leaver, name, property(fail))
    with pytest.raises(UserError, match=f"^env.id=Leaver-v0: its attribute {name} raised RuntimeError: two$"):
        make(EnvConfig(id="Leaver-v0"))


def test_limited_env_names_close_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaver, "where", "close")
    monkeypatch.setattr(Leaver, "how", staticmethod(lambda: 1 / 0))
    with (
        pytest.raises(EnvironmentFault, match="^close raised ZeroDivisionError: division by zero$"),
        limited_env(EnvConfig(id="Leaver-v0")),
    ):
        pass


def test_make_names_missing_entry_point_class() -> None:
    gymnasium.register("Absent-v0", entry_point=f"{__name__}:Absent")
    with pytest.raises(UserError, match=r"^env.id=Absent-v0 with no arguments: cannot be created \(AttributeError: "):
        make(EnvConfig(id="Absent-v0"))
    del gymnasium.registry["Absent-v0"]
