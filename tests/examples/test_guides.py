"""Code and commands of the how-to guides are run in the order of the page.

A block that starts with `# path` is that file. If the repository has the file, the block must be a part of it, apart
from lines left out at `...`. Otherwise the block is added to a file of the user's folder. Python blocks without a path
are executed in one namespace. The overrides of each `shepherd train` are composed; if it names a plugin, it is trained.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.config.compose import compose
from flows.runs.milestones import note_end, note_start
from flows.stages.collect import collect
from flows.stages.make_env import make_env
from flows.stages.summary import summarise
from flows.tracking.news import NewEvents
from flows.tracking.tensorboard_csv import write_tensorboard
from rlcore import conformance, plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.optim.clipping import CLIPPING
from rlcore.optim.optimizer_keys import CLIP_NORMS
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, read_events
from rlcore.store.series import lines
from rlcore.train.trainer import Trainer
from tests import processes
from tests.soaking import heavy

DOCS = processes.ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"(# @package _global_\n)?# ([\w/.]+\.(?:py|yaml))\n")  # Hydra's header must be the first line
SMALL = ["metric.log_level=0", "algo.compile=false"]
RUN = [
    "exp=ppo",
    "env.num_envs=2",
    "env.capture_video=false",
    "algo.total_steps=1024",
    "algo.rollout_steps=64",
    "algo.update_epochs=1",
    "evaluation.every=512",
    "evaluation.episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.baseline_episodes=2",
    "metric.log_every=128",
]


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, path ("" if there is none) and text of every code block of a page."""
    found = []
    for language, text in BLOCK.findall((DOCS / f"{page}.md").read_text()):
        path = PATH.match(text)
        header = (path[1] or "") if path else ""
        found.append((language, path[2] if path else "", header + text[path.end() :] if path else text))
    return found


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Search path and overrides of each `shepherd train` and `shepherd config` of a page, help apart."""
    lines = [line for language, _, text in blocks(page) if not language for line in text.splitlines()]
    for line in lines:
        found = re.match(r"(?:SHEPHERD_SEARCH_PATH=(\S+) )?shepherd (?:train|config) (?!-h)(.*)", line)
        if found:
            yield found[1] or "", shlex.split(found[2], comments=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, the working directory, in which no plugin is named yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "")
    modules, algorithms, rules, names = set(sys.modules), dict(ALGORITHMS), dict(CLIPPING), [*CLIP_NORMS]
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    ALGORITHMS.clear()
    ALGORITHMS.update(algorithms)
    CLIPPING.clear()
    CLIPPING.update(rules)
    CLIP_NORMS[:] = names


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/first`, a short run that was interrupted once."""
    folder = tmp_path_factory.mktemp("user")
    train_in_parts([*RUN, f"run_dir={folder}/runs/first"])
    return folder


def train_in_parts(typed: list[str]) -> RunDirectory:
    """Train and evaluate a run, with an interruption at each boundary."""
    from flows.runs.create import create_run
    from rlcore.evaluation.final import final_evaluation
    from rlcore.train.run_trainer import RunTrainer

    run = create_run(*compose(typed), typed)
    make_env(run)
    note_start(run)
    collect(run)
    done = False
    while not done:  # a new session at each boundary, as after an interruption
        session = RunTrainer(run)
        at = session.advance(lambda progress: None)
        if "checkpoint" in at.due:
            session.save()
        if "evaluate" in at.due:
            session.evaluate()
        session.close()
        done = at.done
    note_end(run, at)
    final_evaluation(run)
    write_tensorboard(run, NewEvents(run).read())
    return run


def write_files(page: str, folder: Path) -> None:
    """Write the files of a page that the repository does not have."""
    for _, path, text in blocks(page):
        if path and not (processes.ROOT / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / path, "a") as file:
                file.write(text)


QUOTING = [
    page.stem
    for page in DOCS.glob("*.md")
    if any((processes.ROOT / path).exists() for _, path, _ in blocks(page.stem) if path)
]


@pytest.mark.parametrize("page", QUOTING)
def test_quoted_code_is_in_repository_file(page: str) -> None:
    for _, path, text in blocks(page):
        if path and (source := processes.ROOT / path).exists():
            for part in re.split(r"^ *\.\.\.\n", text, flags=re.MULTILINE):
                quoted = [textwrap.indent(without_blanks(part), " " * 4 * depth) for depth in range(3)]
                assert any(each in without_blanks(source.read_text()) for each in quoted), f"{path}:\n{part}"


def without_blanks(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "change_the_network",
        "your_own_model",
        "add_a_wrapper",
        "add_a_schedule",
        "write_a_world_model",
        "stop_early",
        "log_numbers_from_info",
        "callbacks",
        "wandb",
        "write_a_logger",
        "extend_a_run",
        "tutorial",
    ],
)
def test_guide_commands_compose_and_plugins_train(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(page, folder)
    for search_path, overrides in commands(page):
        monkeypatch.setenv("SHEPHERD_SEARCH_PATH", search_path)
        config = compose([*overrides, *SMALL])[0]
        if any(each.startswith("plugins=") for each in overrides):
            assert list(itertools.islice(Trainer(config), 2))


def test_guide_clipping_rule_limits_each_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("your_own_model", folder)
    monkeypatch.syspath_prepend(str(folder))
    # Norms of the weights' rows: 5, 1e-3 (the minimum) and 2. With a limit of 0.1, the gradients' are at most these.
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    gradient = torch.tensor([[0.0, 1.0], [0.3, 0.4], [0.1, 0.0]])
    matrix, vector = importlib.import_module("my_clipping").factors([gradient, gradient[0]], [weight, weight[0]], 0.1)
    torch.testing.assert_close(matrix, torch.tensor([[0.5], [0.0002], [1.0]]))
    torch.testing.assert_close(vector, torch.tensor(0.5))


QUICK = (conformance.interrupted_equals_uninterrupted, conformance.a_loaded_policy_acts_alike)
SLOWEST = conformance.machine_code_equals_eager  # takes minutes


@pytest.mark.parametrize(
    "check",
    [pytest.param(each, marks=() if each in QUICK else heavy) for each in conformance.CHECKS if each is not SLOWEST],
    ids=lambda check: check.__name__,
)
def test_guide_world_model_passes_conformance(
    check: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files("write_a_world_model", folder)
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "conf")
    small = ["env.num_envs=3", "env.max_episode_steps=12", "algo.learning_starts=96", "algo.total_steps=400"]
    check(compose(["exp=tiny_world", "plugins=[tiny_world]", *small])[0])


@pytest.mark.parametrize(
    "page",
    [
        "your_own_algorithm",
        "change_the_network",
        "add_a_schedule",
        "stop_early",
        "callbacks",
        "tensorboard",
        "read_run_data",
        "tutorial",
    ],
)
def test_guide_python_code_runs(page: str, folder: Path, recorded: Path) -> None:
    shutil.copytree(recorded, folder, dirs_exist_ok=True)
    namespace: dict[str, object] = {}
    for language, path, text in blocks(page):
        if language == "python" and not path and "mlflow" not in text:  # a registered model takes a whole flow
            exec(compile(text, f"{page}.md", "exec"), namespace)


@pytest.mark.slow
def test_guide_logs_numbers_from_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "log_numbers_from_info"
    write_files(page, folder)
    _, overrides = next(commands(page))
    run = train_in_parts([*(line for line in overrides if not line.startswith("exp=")), *RUN])
    summarise(run)
    namespace: dict[str, Any] = {}
    for language, path, text in blocks(page):
        if language == "python" and not path:
            exec(compile(text, f"{page}.md", "exec"), namespace)
    assert "greedy_is_success" in capsys.readouterr().out
    episodes = namespace["iteration"].episodes
    for each in episodes:  # a success has a reward of 1, and each step costs a tenth of the distance
        assert each.ret == pytest.approx(each.info["is_success"] - 0.1 * each.length * each.info["distance"])
    assert {each.info["is_success"] for each in episodes} >= {1.0}
    assert {"Game/distance", "Game/is_success"} <= lines(read_events(run.events)).keys()
    evaluations = [event["greedy"] for event in read_events(run.events) if event["kind"] == "evaluation"]
    assert all(set(result["info"]) == {"distance", "is_success"} for result in evaluations)
    documents = {name for kind, name in documented() if kind == "evaluation" and name.startswith("result.")}
    assert {f"result.{name}" for name in evaluations[-1]} == documents


@heavy
@pytest.mark.slow
def test_guide_extends_run_with_model(folder: Path, recorded: Path) -> None:
    shutil.copytree(recorded, folder, dirs_exist_ok=True)
    (code,) = [text for language, _, text in blocks("extend_a_run") if language == "python"]
    variables = processes.environment(folder)
    short = [sys.executable, "-c", code.replace("98304", "1536")]
    done = subprocess.run(short, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = RunDirectory(folder / "runs/longer").read_summary()
    assert (summary["status"], summary["policy_steps"], summary["model"]["version"]) == ("finished", 1536, 1)


def test_guide_callback_logs_and_stops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("callbacks", folder)
    results = iter([3.0, 5.0, 4.0])
    monkeypatch.setattr(Trainer, "evaluate", lambda self: {"mean": next(results)})
    (overrides,) = [words for _, words in commands("callbacks") if "patience: 2" in words[-1]]
    words = [word.replace("patience: 2", "patience: 1") for word in overrides]
    found = Trainer(compose([*words, *RUN[1:], *SMALL])[0]).run(evaluate_every=1)
    assert found.reason == "callback watcher:Watcher: 1 evaluations without a return above 5"
    assert [metrics["Watcher/best"] for metrics in found.metrics.values()] == [3, 5, 5]


def test_guide_logger_stores_each_point_once(folder: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("write_a_logger", folder)
    shutil.copytree(recorded, folder, dirs_exist_ok=True)
    monkeypatch.setenv(plugins.VARIABLE, "sqlite_logger")
    run = RunDirectory("runs/first")
    run.config.write_text(run.config.read_text().replace("name: tensorboard", "name: sqlite"))
    (code,) = [text for language, path, text in blocks("write_a_logger") if language == "python" and not path]
    for _ in range(2):
        exec(compile(code, "write_a_logger.md", "exec"), {})
    with closing(sqlite3.connect(run.path / "metrics.db")) as store:
        rows = store.execute("select metric, steps, value from points order by steps").fetchall()
    expected = {name: list(line) for name, line in lines(read_events(run.events)).items()}
    assert {name: [(steps, value) for metric, steps, value in rows if metric == name] for name, *_ in rows} == expected


def documented() -> set[tuple[str, str]]:
    """Kinds and fields that docs/event_log.md lists."""
    text = (DOCS / "event_log.md").read_text()
    common, *sections = re.split(r"^## `", text, flags=re.MULTILINE)
    everywhere = fields_of(common)
    return {(part.partition("`")[0], name) for part in sections for name in everywhere | fields_of(part)}


def fields_of(section: str) -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE))


def logged(events: Path) -> set[tuple[str, str]]:
    """Kinds and fields of a log; the fields of an evaluation's results are `result.mean` and so on."""
    found = set[tuple[str, str]]()
    for event in read_events(events):
        kind, results = event["kind"], [event.get(mode) or {} for mode in ("greedy", "stochastic")]
        found |= {(kind, name) for name in event} | {(kind, f"result.{name}") for each in results for name in each}
    return found


def test_event_log_page_documents_fields_of_run(recorded: Path) -> None:
    found = logged(RunDirectory(recorded / "runs/first").events)
    with_info_keys = {("baseline", "info"), ("evaluation", "result.info")}
    assert (
        found
        == {(kind, name) for kind, name in documented() if kind not in ("registered", "callback")} - with_info_keys
    )


def written() -> set[tuple[str, str]]:
    """Kinds and fields of the events that the code writes: `append` or `note` with a kind and keyword arguments."""
    found = set[tuple[str, str]]()
    for path in itertools.chain.from_iterable((processes.ROOT / part).rglob("*.py") for part in ("rlcore", "flows")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "note") and call.keywords:
                kind = call.args[0]
                assert isinstance(kind, (ast.Constant, ast.Name)), ast.unparse(call)
                if isinstance(kind, ast.Constant):
                    found |= {(kind.value, name) for name in ("kind", *(key.arg for key in call.keywords)) if name}
    return found


def test_event_log_page_documents_every_event_in_code() -> None:
    found = written()
    assert {kind for kind, _ in found} == {kind for kind, _ in documented()}
    assert found <= documented()


def test_event_log_comparison_finds_undocumented_field(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl").append("start", run_id="1", algo="ppo", env_id="x", seed=1, new=2)
    assert logged(tmp_path / "events.jsonl") - documented() == {("start", "new")}
