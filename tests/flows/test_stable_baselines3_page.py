"""The page for users of Stable-Baselines3: its names, keys, commands and values exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from flows.cli.parser import parse, parser
from flows.config.compose import compose
from flows.sweeps.group_runs import has_several
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.values import at, plain
from rlcore.evaluation.loaded_policy import LoadedPolicy
from tests.processes import ROOT

PAGE = (ROOT / "docs/coming_from_stable_baselines3.md").read_text()
THEIRS: dict[str, Any] = json.loads((ROOT / "tests/golden/sb3_names.json").read_text())
CODE = re.compile(r"`([^`]+)`")
BLOCKS = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
SPANS = [code for line in BLOCKS.sub("", PAGE).splitlines() for code in CODE.findall(line)]
OWN = {"model", "obs", "N"}  # variables of the examples
SECTIONS = dict(re.findall(r"^##+ (.+?)\n(.*?)(?=^##+ |\Z)", PAGE, re.DOTALL | re.MULTILINE))
KEY = re.compile(r"(?:algo|buffer|checkpoint|distribution|env|evaluation|fabric|metric|sweep)\.[\w.]+")


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables, without heads and the lines below them."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not below.startswith("|---") and not line.startswith("|---"):
            yield line.strip("| ").split(" | ")


def names_of_sb3(code: str) -> set[str]:
    """Return the names that a code span for SB3 uses: options, metrics, classes, functions and arguments."""
    if code.startswith("-") or "/" in code:
        return {code}
    names = {f"{name}=" for name in re.findall(r"(\w+)=", code)}
    others = re.findall(r"[A-Za-z_]\w*", re.sub(r"\w+=|\b\d\w*\b|True|False|None", " ", code))
    return names | {name for name in others if name not in OWN or len(others) == 1}


def test_page_uses_names_of_sb3() -> None:
    known = {*THEIRS["names"], *THEIRS["metrics"], *THEIRS["options"]}
    text = PAGE.partition("## Daily needs")[0]
    cells = [row[0] for row in rows(text)]
    used = {name for cell in cells for code in CODE.findall(cell) for name in names_of_sb3(code)}
    known |= {name.removesuffix("=") for name in known}  # the tables of keys list arguments alone
    assert len(used) > 90 and not used - known


def test_daily_needs_name_classes_and_options_of_sb3() -> None:
    theirs = {row[0]: row[1] for row in rows(SECTIONS["Daily needs"])}
    known = {*THEIRS["names"], *THEIRS["options"]}
    used = {name for cell in theirs.values() for code in CODE.findall(cell) for name in names_of_sb3(code)}
    assert len(used) > 4 and not used - known
    algorithms = re.sub(r"sb3-contrib:|sbx:|\(.*?\)", "", theirs["algorithms"]).replace("-", "")
    classes = {"HerReplayBuffer" if name == "HER" else name for name in re.findall(r"\w+", algorithms)}
    assert len(classes) == 14 and not classes - known
    assert f"{THEIRS['settings']} pairs" in theirs["settings for known tasks"]


@pytest.mark.parametrize(
    ("benchmark", "quantity", "text"),
    [
        ("a", "cpu", "of PPO on CartPole: {:.1f} times ours"),
        ("f", "cpu", "of SAC on LunarLander: {:.1f} times"),
        ("j", "cpu", "of PPO on Pong from pixels: {:.2f} times"),
        ("e", "wall", "about equal processor time, {:.1f} times our wall time"),
    ],
)
def test_speed_is_that_of_measurements(benchmark: str, quantity: str, text: str) -> None:
    measured = json.loads((ROOT / "docs/results/speed.json").read_text())[benchmark]
    seconds = {
        name: median(run[quantity] for run in measured["rows"][name]) for name in ("Shepherd", "Stable-Baselines3")
    }
    alone = median(measured["alone"]) if quantity == "cpu" else 0  # the simulator's own time
    ratio = (seconds["Stable-Baselines3"] - alone) / (seconds["Shepherd"] - alone)
    assert text.format(ratio) in SECTIONS["Daily needs"]


def keys() -> set[str]:
    known = {argument.key for argument in arguments(RunConfig)}
    for algorithm in ALGORITHMS.values():
        known |= {argument.key for argument in arguments(algorithm.Config, "algo.")}
    return known


def test_page_names_existing_keys() -> None:
    from flows.sweeps.plan import SweepConfig

    known = keys() | {argument.key for argument in arguments(SweepConfig, "sweep.")}
    known |= {key.rpartition(".")[0] for key in known}
    used = {key.rstrip(".") for code in SPANS for key in KEY.findall(code)}
    used |= {key for line in commands() for key in KEY.findall(line)}
    used = {"env.wrapper" if key.startswith("env.wrapper.") else key for key in used}  # arguments of an environment
    assert len(used) > 70 and not used - known


def commands() -> list[str]:
    """Return the command lines of Shepherd on the page."""
    spans = [code for code in SPANS if code.startswith("shepherd ")]
    return [*spans, *(line for line in PAGE.splitlines() if line.startswith("shepherd "))]


@pytest.mark.parametrize("line", commands())
def test_command_is_accepted(line: str) -> None:
    words = shlex.split(line)[1:]
    if len(words) == 1:  # the name of a command
        assert words[0] in parser().commands
        return
    parse(words)
    overrides = [word for word in words[1:] if not word.startswith("init_from")]
    if words[0] == "train" and overrides and "-f" not in words and not has_several(overrides):
        compose(overrides)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin of the page's examples."""
    monkeypatch.setenv("SHEPHERD_PLUGINS", "my_module")
    (tmp_path / "my_module.py").write_text("class MyCallback:\n    def on_end(self, run):\n        pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_module", None)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("code", sorted({code for code in SPANS if re.match(r"[\w.]+=\S", code)}))
def test_setting_is_accepted(code: str) -> None:
    (key, _, value) = code.partition("=")
    if key not in keys() | {"exp", "optim", "logger", "env"}:  # an argument of SB3, or of our function `predict`
        assert f"{key}=" in THEIRS["names"] or key in signature(LoadedPolicy.predict).parameters
    elif key == "plugins":
        assert code == "plugins=[my_module]"
    elif "RUN" not in value and ":" not in value.partition("[")[0]:  # neither a run nor a class
        preset = "ppo_recurrent" if key.startswith("algo.rnn") else "ppo"
        constant = ["algo.anneal_lr=false"] if key == "algo.lr_schedule" else []
        compose([code] if key == "exp" else [f"exp={preset}", *constant, code])


def settings(name: str) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield argument, default, keys and value of each row of the table of an algorithm's keys."""
    heading = "SAC and DroQ" if name in ("sac", "droq") else name.upper()
    table = next(part for part in SECTIONS[heading].split("\n\n") if f"`exp={name}` |" in part)
    for argument, default, about, value in rows(table):
        yield argument.strip("`"), default, re.findall(r"`((?:algo|buffer)\.[\w.]+)`", about), value


def equal(value: Any, text: str) -> bool:
    return value == (None if text == "null" else {"true": True, "false": False}.get(text, text)) or (
        isinstance(value, int | float) and text[0].isdigit() and value == float(text)
    )


@pytest.mark.parametrize(("name", "theirs"), [("ppo", "PPO"), ("a2c", "A2C"), ("sac", "SAC"), ("droq", "sbx.SAC")])
def test_table_values_equal_presets_and_sb3_defaults(name: str, theirs: str) -> None:
    preset, defaults = plain(compose([f"exp={name}"])[0]), THEIRS["defaults"][theirs]
    for argument, default, ours, value in settings(name):
        assert ours and equal(at(preset, ours[0]), value), (argument, at(preset, ours[0]))
        if name == "droq":  # settings of the paper, which are not defaults
            assert argument in defaults or f"{argument}=" in THEIRS["names"]
        else:
            assert str(defaults[argument]) == default, argument


@pytest.mark.parametrize("name", ["ppo", "a2c", "sac"])
def test_command_sets_defaults_of_sb3(name: str) -> None:
    (line,) = (line for line in commands() if f"exp={name} env.num_envs=1" in line)
    config = plain(compose(shlex.split(line)[2:])[0])
    for argument, default, ours, _ in settings(name):
        if default != "auto":
            assert at(config, ours[0]) == ast.literal_eval(default), argument
    network = THEIRS["defaults"]["ActorCriticPolicy"]
    if name != "sac":
        assert config["algo"]["actor"]["ortho_init"] == config["algo"]["critic"]["ortho_init"] == network["ortho_init"]
        assert config["algo"]["actor"]["log_std_init"] == network["log_std_init"]
        assert config["algo"]["encoder"]["mlp_layers"] == 0


def test_page_names_documented_metrics() -> None:
    others = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "coming_from_stable_baselines3.md"]
    documents = "".join(path.read_text() for path in others)
    used = {code for code in SPANS if re.match("(Rewards|Game|Evaluation|Loss|Info|Time)/", code)}
    assert len(used) > 10 and all(f"`{name}`" in documents for name in used)


def test_versions_on_page_are_those_of_names() -> None:
    assert f"SB3 {THEIRS['versions']['stable-baselines3']}" in PAGE


def test_python_code_names_existing_functions(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    tree = ast.parse(code)
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "page", "exec"), {})
    (overrides,) = (
        ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.List) and len(node.elts) > 4
    )
    compose(overrides)
