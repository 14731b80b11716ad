"""User plugins: how they are named, imported, hashed and refused."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore import plugins
from rlcore.algorithms import register
from rlcore.errors import UserError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory without named plugins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(**files: str) -> None:
    """`a__b` is a/b.py."""
    for name, text in files.items():
        path = Path(f"{name.replace('__', '/', 1)}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("words", "modules", "others"),
    [
        (["plugins=[a,b.c]", "exp=ppo"], ["a", "b.c"], ["exp=ppo"]),
        (["evaluate", "run", "plugins=a", "--video"], ["a"], ["evaluate", "run", "--video"]),
        (["+plugins=['a', \"b\"]", "plugins=[]"], ["a", "b"], []),
        (["run_name=plugins=[a]"], [], ["run_name=plugins=[a]"]),
    ],
)
def test_take_from_separates_plugins_from_arguments(words: list[str], modules: list[str], others: list[str]) -> None:
    assert plugins.take_from(words) == (modules, others)


def test_as_typed_round_trips_through_take_from() -> None:
    plugins.name(["a", "b.c"])
    plugins.name(["b.c"])
    assert plugins.take_from(plugins.as_typed()) == (["a", "b.c"], [])
    assert plugins.as_typed([]) == []


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "nowhere",
            r"plugins=nowhere: .* cannot be imported \(ModuleNotFoundError: No module named 'nowhere'.*\); "
            "run the command in the folder that contains it",
        ),
        ("torn", r"cannot be imported \(SyntaxError"),
        (".x", "cannot be imported"),
        ("failing", r"cannot be imported \(ZeroDivisionError: division by zero in .*failing.py, line 2\)"),
        ("bare", r"this folder has no __init__.py; name a module in it, such as bare.mine"),
    ],
)
def test_load_refuses_module_that_cannot_be_imported(folder: Path, module: str, message: str) -> None:
    write(torn="def (", failing="x = 0\n1 / x\n")
    (folder / "bare").mkdir()
    plugins.name([module])
    with pytest.raises(UserError, match=message):
        plugins.load()


def test_load_stops_hanging_plugin_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(hanging="import time\ntry:\n    time.sleep(60)\nexcept Exception:\n    pass\n")
    monkeypatch.setattr(plugins, "IMPORT_LIMIT", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    plugins.name(["hanging"])
    with pytest.raises(UserError, match=r"^plugins=hanging: .* \(not finished after 0.05 s in .*hanging.py, line 3\)$"):
        plugins.load()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize("code", ["while True: pass", "while True: time.sleep(0.001)"])
def test_load_stops_plugin_that_computes_or_waits_forever(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(endless=f"import time\n{code}\n")
    monkeypatch.setattr(plugins, "IMPORT_LIMIT", 0.1)
    plugins.name(["endless"])
    with pytest.raises(UserError, match=r"not finished after 0.1 s in .*endless.py, line 2"):
        plugins.load()


def test_load_waits_for_plugin_that_gets_little_processor_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes four limits of wall time, and less than one of processor time."""
    slow = "import time\nfor _ in range(8):\n    end = time.process_time() + 0.005\n"
    write(starved=slow + "    while time.process_time() < end:\n        pass\n    time.sleep(0.04)\n")
    monkeypatch.setattr(plugins, "IMPORT_LIMIT", 0.1)
    plugins.name(["starved"])
    plugins.load()


def test_load_replaces_signal_handler_set_in_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a handler that a C library has set, `signal.signal` returns None and does not accept it."""
    write(quick="")
    set_handler, before, handlers = signal.signal, signal.getsignal(signal.SIGALRM), list[Any]()

    def set_and_return_none(number: int, handler: Any) -> None:
        handlers.append(handler)
        set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", set_and_return_none)
    plugins.name(["quick"])
    plugins.load()
    set_handler(signal.SIGALRM, before)
    assert handlers[1:] == [signal.SIG_DFL]


def test_hashes_cover_only_source_files_of_plugin(folder: Path) -> None:
    write(mine____init__="", mine__agent="x = 1\n", single="y = 1\n", other="")
    plugins.name(["mine", "single"])
    first = plugins.hashes()
    write(other="z = 2\n")
    (folder / "mine/notes.txt").write_text("more")
    assert plugins.hashes() == first
    write(mine__agent="x = 2\n")
    second = plugins.hashes()
    assert (second["mine"] != first["mine"], second["single"]) == (True, first["single"])
    (folder / "mine/agent.py").rename(folder / "mine/learner.py")
    assert plugins.hashes()["mine"] != second["mine"]


def test_bringing_returns_plugin_that_contains_module() -> None:
    plugins.name(["my_envs", "mine.algos", "mine_too"])
    assert plugins.bringing("mine.algos") == plugins.bringing("mine.algos.reinforce") == ["mine.algos"]
    assert plugins.bringing("library.algo") == ["my_envs", "mine.algos", "mine_too"]
    assert plugins.bringing("rlcore.algorithms.on_policy.ppo") == []


def test_member_resolves_names_in_plugins_only(folder: Path) -> None:
    write(mine____init__="", mine__envs="class Env: ...\n", mine_too="open('imported', 'w')\n")
    plugins.name(["mine"])
    assert getattr(plugins.member("key", "mine.envs.Env"), "__module__", None) == "mine.envs"
    for target in ("mine_too.Env", "mine.Env.x", "minerva.Env", "os.system"):
        with pytest.raises(UserError, match=rf"key={target}|key=mine.Env: this module"):
            plugins.member("key", target)
    with pytest.raises(UserError, match="^key=mine: must be a name with its module, as package.module:Class$"):
        plugins.member("key", "mine")
    with pytest.raises(UserError, match=r"add plugins=\[mine_too\] to the command, or set SHEPHERD_PLUGINS=mine_too"):
        plugins.member("key", "mine_too.Env")
    with pytest.raises(UserError, match=r"key=mine.envs.Evn: mine.envs has no Evn"):
        plugins.member("key", "mine.envs.Evn")
    assert not (folder / "imported").exists()


class Incomplete:
    Config = object
    Agent = build = None


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("ppo", Incomplete, "the name is taken"),
        ("mine", type("Empty", (), {}), ": Config is missing"),
        ("mine", Incomplete, "Config must be a subclass of rlcore.config.run.AlgorithmConfig"),
    ],
)
def test_register_refuses_invalid_algorithm_module(name: str, module: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        register(name, module)
