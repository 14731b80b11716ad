"""Parser of the command line: functions and arguments of commands, and error messages."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from flows.cli import main as cli
from flows.cli.other_commands import translate
from flows.cli.parser import STAGES, parse, parser
from rlcore.errors import UserError

# At least one line for each command, with all arguments.
LINES = [
    "train exp=ppo seed=3",
    "train -h algo",
    "train exp=ppo seed=1,2 group=mine --workers 2",
    "sweep sweep=ppo_cartpole sweep.trials=3 algo.gamma=interval(0.9,1)",
    "sweep -h",
    "sweep resume first sweep.trials=40",
    "sweep status first --json",
    "resume runs/a metric.log_every=1",
    "extend runs/a algo.total_steps=200000",
    "evaluate runs/a --episodes 5 --checkpoint best --round 2 --video",
    "collect runs/a --minari mine-v0 --episodes 5 --checkpoint best --actions greedy --round 1",
    "export runs/a --onnx a.onnx --torch a.pt2 --checkpoint best",
    "enjoy runs/a --episodes 2",
    "dream runs/a --checkpoint best",
    "config exp=ppo --params",
    "diff runs/a runs/b",
    "reproduce runs/a --run-dir runs/b --json",
    "runs low --runs all --last 3 --json",
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


def error_message(capsys, *arguments):
    """Run a command that fails, check for exit code 2 and one line of output, and return the message."""
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("shepherd: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("shepherd: ").rstrip("\n")


@pytest.mark.parametrize("line", LINES)
def test_parse_values_match_function_signature(line):
    calls, values = parse(line.split())
    module, _, name = calls.partition(":")
    inspect.signature(getattr(import_module(module), name)).bind(**values)


def test_parse_error_shows_usage_for_missing_argument(capsys):
    assert (
        error_message(capsys, "diff", "runs/a")
        == "SECOND: missing; type `shepherd diff FIRST SECOND`; see `shepherd diff --help`"
    )
    assert "RUN_DIR: missing; type `shepherd resume RUN_DIR [OVERRIDES ...]`; " in error_message(capsys, "resume")


def test_lines_cover_every_command():
    assert {command.split()[0] for command in parser().commands} == {line.split()[0] for line in LINES}


@pytest.mark.parametrize(
    ("line", "calls", "values"),
    [
        (
            "train exp=ppo seed=3",
            "flows.cli.train_command:train_run_or_group",
            {"overrides": ["exp=ppo", "seed=3"], "workers": None, "file": ""},
        ),
        (
            "config exp=ppo --params seed=3",
            "flows.cli.config:config",
            {"overrides": ["exp=ppo", "seed=3"], "params": True, "file": ""},
        ),
        (
            "config -f run.yaml seed=3",
            "flows.cli.config:config",
            {"overrides": ["seed=3"], "params": False, "file": "run.yaml"},
        ),
        ("train exp=ppo -h algo", "flows.cli.help:train_help", {"words": ["exp=ppo", "algo"]}),
        ("registry", "flows.cli.registry:list_versions", {"name": None}),
        ("registry rollback m --why x=y", "flows.cli.registry:rollback", {"name": "m", "why": "x=y"}),
        ("resume runs/a", "flows.cli.train_command:resume", {"run_dir": "runs/a", "overrides": []}),
    ],
)
def test_parse_returns_function_and_values(line, calls, values):
    assert parse(line.split()) == (calls, values)


def test_parse_accepts_overrides_around_options():
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
def test_parse_error_is_one_sentence(capsys, line, parts):
    sentence = error_message(capsys, *line.split())
    for part in parts:
        assert part in sentence


def test_translate_keeps_shepherd_lines():
    for line in LINES:
        assert translate(line.split()).words == line.split()


def test_evaluate_accepts_folder_named_like_override(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1").mkdir()
    with pytest.raises(UserError, match="lr=1"):  # parsed as a folder, but the folder has no run
        cli._run(["evaluate", "lr=1"])
