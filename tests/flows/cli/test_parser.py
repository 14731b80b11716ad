"""Typed lines: commands reach their functions, and what other programs would take is told in one sentence."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from flows.cli import main as cli
from flows.cli.other_commands import translate
from flows.cli.parser import STAGES, parse, parser
from rlcore.errors import UserError

# One line of every command, with all of its arguments.
LINES = [
    "train exp=ppo seed=3",
    "train -h algo",
    "train exp=ppo seed=1,2 group=mine --workers 2",
    "sweep sweep=ppo_cartpole sweep.trials=3 algo.gamma=interval(0.9,1)",
    "sweep -h",
    "sweep resume first sweep.trials=40",
    "sweep status first --json",
    "resume runs/a metric.log_every=1",
    "evaluate runs/a --episodes 5 --checkpoint best --round 2 --video",
    "collect runs/a --minari mine-v0 --episodes 5 --checkpoint best --actions greedy --round 1",
    "enjoy runs/a --episodes 2",
    "dream runs/a --checkpoint best",
    "config exp=ppo --params",
    "diff runs/a runs/b",
    "reproduce runs/a --run-dir runs/b --json",
    "reap runs other --elsewhere --resume --json",
    "compare a runs/b --out r --threshold 475 --runs all --json",
    "agents",
    "envs",
    "registry",
    "registry list m",
    "registry promote m 3 --why steadier",
    "registry rollback m --why worse",
    "ui --port 5002",
    "ui --sweep first",
    "serve models:/m@champion --port 5002",
    "stage train runs/a seed=1 --params params.yaml",
]


def told(capsys, *arguments):
    """The one sentence behind a mistake: exit code 2, no list of what may be typed, no traceback."""
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("shepherd: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("shepherd: ").rstrip("\n")


@pytest.mark.parametrize("line", LINES)
def test_a_command_calls_a_function_that_takes_its_arguments(line):
    calls, values = parse(line.split())
    module, _, name = calls.partition(":")
    inspect.signature(getattr(import_module(module), name)).bind(**values)


def test_what_is_missing_is_told_with_the_line_that_has_it(capsys):
    assert (
        told(capsys, "diff", "runs/a")
        == "SECOND: missing; type `shepherd diff FIRST SECOND`; see `shepherd diff --help`"
    )
    assert "RUN_DIR: missing; type `shepherd resume RUN_DIR [OVERRIDES ...]`; " in told(capsys, "resume")


def test_every_command_has_a_line_here():
    assert {command.split()[0] for command in parser().commands} == {line.split()[0] for line in LINES}


@pytest.mark.parametrize(
    ("line", "calls", "values"),
    [
        (
            "train exp=ppo seed=3",
            "flows.cli.train_command:train",
            {"overrides": ["exp=ppo", "seed=3"], "workers": None},
        ),
        (
            "config exp=ppo --params seed=3",
            "flows.cli.config:config",
            {"overrides": ["exp=ppo", "seed=3"], "params": True},
        ),
        ("train exp=ppo -h algo", "flows.cli.help:train_help", {"words": ["exp=ppo", "algo"]}),
        ("registry", "flows.cli.registry:list_versions", {"name": None}),
        ("registry rollback m --why x=y", "flows.cli.registry:rollback", {"name": "m", "why": "x=y"}),
        ("resume runs/a", "flows.cli.train_command:resume", {"run_dir": "runs/a", "overrides": []}),
    ],
)
def test_a_line_is_taken_apart(line, calls, values):
    assert parse(line.split()) == (calls, values)


def test_overrides_may_stand_before_and_behind_the_options():
    _, values = parse(["stage", "train", "runs/a", "seed=1", "--params", "params.yaml", "seed=2"])
    assert values == {"name": "train", "run_dir": "runs/a", "overrides": ["seed=1", "seed=2"], "params": "params.yaml"}
    assert values["name"] in STAGES


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("tain exp=ppo", ["tain: no such command; did you mean 'train'?", "shepherd --help"]),
        ("evaluate", ["SOURCE", "shepherd evaluate --help"]),
        ("evaluate runs/a --episodes x", ["--episodes", "'x'"]),
        ("evaluate runs/a --episode 3", ["--episode 3: unknown argument; did you mean '--episodes'?"]),
        ("evaluate runs/a --episodes 0", ["--episodes 0: must be 1 or more"]),
        ("evaluate runs/a --round -3", ["--round -3: must be 0 to 999999999"]),
        ("collect runs/a --minari a-v0 --round 9999999999", ["--round 9999999999: must be 0 to 999999999"]),
        ("stage deploy runs/a", ["deploy", "make-env"]),
        ("train exp=ppo --frobnicate", ["--frobnicate: unknown argument", "shepherd train --help"]),
        ("evaluate runs/a --episods 3", ["--episods 3: unknown argument; did you mean '--episodes'?"]),
        ("diff runs/a runs/b runs/c", ["runs/c: unknown argument;"]),
        ("registry demote m", ["demote", "rollback"]),
    ],
)
def test_a_mistake_is_one_sentence(capsys, line, parts):
    sentence = told(capsys, *line.split())
    for part in parts:
        assert part in sentence


def test_a_line_of_ours_is_left_alone():
    for line in LINES:
        assert translate(line.split()).words == line.split()


def test_a_run_whose_folder_looks_like_a_setting_can_be_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1").mkdir()
    with pytest.raises(UserError, match="lr=1"):  # there is no run in it: that is what is told
        cli._run(["evaluate", "lr=1"])
