"""Argument parser of `shepherd`: commands, their arguments, and the function that each command calls.

The parser stores functions as text (`module:name`) and does not import them, because imports would delay the report of
a user error. A test checks that the functions exist.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from rlcore import __version__
from rlcore.config.values import nearest
from rlcore.errors import UserError

STAGES = ("make-env", "collect", "train", "checkpoint", "evaluate", "register-model")
SWEEP_HELP = "flows.cli.sweep_command:sweep_help"
HELP = "flows.cli.help:train_help"  # `shepherd train -h`, with overrides and words that select keys
KEYS = "settings as key=value, for example exp=ppo env.id=Acrobot-v1; `shepherd train -h` lists all keys"
SWEEP = (
    "sweep=PRESET, keys of the sweep (sweep.trials=20), values to search (algo.gamma=interval(0.9,1)) and any key of "
    "`shepherd train`"
)
FROM_FILE = (
    "file with settings, in YAML or JSON, or a file of rl8 (key env_cls); settings on the command line replace its own"
)
RUN_DIR = "run directory"
SOURCE = "run directory, checkpoint directory or models:/NAME@ALIAS"
CHECKPOINT = (
    "checkpoint of the run: latest, best, or a number of policy steps (default: best, or latest if none is best)"
)
SIDE = "name of a group of runs (set by group=NAME), sweep, folder of runs, glob, or mlflow:EXPERIMENT?FILTER"
RUNS = (
    "group, sweep, folder of runs or glob, as in `shepherd compare`, or a word in the name, algorithm, environment, "
    "group or status of runs (default: all runs)"
)
POSITIONALS = ("source", "run_dir", "first", "second", "sides", "folders", "name", "version", "words")
MISSING = "the following arguments are required: "  # start of argparse's message
PARAMS = (
    "parameter file (params.yaml): create the run from it, or continue the run if its parameters and code are the "
    "same; otherwise move the old run to a subfolder and start again"
)


class Parser(argparse.ArgumentParser):
    """Argument parser that raises errors as `UserError`; `commands` maps the name of each command to its parser."""

    commands: Mapping[str, Any] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError`; if arguments are missing, its message shows the complete command line."""
        if message.startswith(MISSING):
            usage = re.sub(r"\[-[^]]*\]", "", self.format_usage().removeprefix(f"usage: {self.prog}"))
            missing = " and ".join(_place(word) for word in message.removeprefix(MISSING).split(", "))
            typed = f"`{' '.join([self.prog, *map(_place, usage.split())])}`; see `{self.prog} --help`"
            raise UserError(f"{missing}: missing; type {typed}")
        raise UserError(f"{message}; see `{self.prog} --help`")


def _finite(text: str) -> float:
    """Convert text to a finite number; raise `ArgumentTypeError`, which argparse reports, if that is impossible."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text}: must be a finite number")


def _place(word: str) -> str:
    """Convert a word of a usage line to capitals if it is a placeholder for an argument; return options unchanged."""
    return word if word.startswith(("-", "{")) else word.upper()


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Parse a command line; return the function that it calls, as `module:name`, and the function's arguments.

    Overrides (`key=value`) are accepted before and after options; argparse alone accepts them only before the first
    option. Raises UserError if the command line is invalid.
    """
    if not arguments:
        raise UserError("no command given; `shepherd --help` lists all commands")
    command = arguments[0]
    if command.startswith("-") and command not in ("-h", "--help", "--version"):
        raise UserError(f"{command}: unknown option; see `shepherd --help`")
    if command == "train" and {"-h", "--help"} & set(arguments):
        return HELP, {"words": [a for a in arguments[1:] if a not in ("-h", "--help")]}
    if command == "sweep" and {"-h", "--help"} & set(arguments) and arguments[1] not in ("resume", "status"):
        return SWEEP_HELP, {}
    if command == "sweep" and arguments[1:2] in (["resume"], ["status"]):
        arguments = [f"sweep {arguments[1]}", *arguments[2:]]
    root = parser()
    if not command.startswith("-") and command not in root.commands:
        shown = command.strip() or repr(command)
        raise UserError(
            f"{shown}: no such command{nearest(command, root.commands)}; `shepherd --help` lists all commands"
        )
    options, rest = root.parse_known_args(arguments)
    values = vars(options)
    if rest and ("overrides" not in values or any(word.startswith("-") for word in rest)):
        known = re.findall(r"--[\w-]+", root.commands[arguments[0]].format_help())
        hint = nearest(rest[0], known) if rest[0].startswith("-") else ""
        raise UserError(f"{' '.join(rest)}: unknown argument{hint}; see `shepherd {command} --help`")
    if rest:
        values["overrides"] = [*values["overrides"], *rest]
    for name in POSITIONALS:
        given = values.get(name)
        if "" in arguments and (given == "" or (isinstance(given, list) and "" in given)):
            raise UserError(f"{name.upper()}: must not be empty; see `shepherd {command} --help`")
    for name in ("episodes", "workers", "last"):
        if (values.get(name) or 1) < 1 or values.get(name) == 0:
            raise UserError(f"--{name} {values[name]}: must be 1 or more")
    if not 0 <= (values.get("round") or 0) < 10**9:
        raise UserError(f"--round {values['round']}: must be 0 to 999999999")
    return values.pop("calls"), values


def parser() -> Parser:
    """Build the parser of all commands; in its results, `calls` is the name of the function that runs the command."""
    root = Parser(prog="shepherd", description="Reinforcement learning as reproducible experiment stages.")
    root.add_argument("--version", action="version", version=f"shepherd {__version__}")
    group = root.add_subparsers(required=True, metavar="COMMAND")
    root.commands = group.choices

    command = _add(
        group,
        "train",
        "flows.cli.train_command:train_run_or_group",
        "train an agent, evaluate it and register the model",
    )
    about = f"{KEYS}; several values of a key, as in seed=0,1,2 group=NAME, train one run per value"
    command.add_argument("overrides", nargs="*", default=[], help=about)
    command.add_argument("-f", "--file", default="", metavar="FILE", help=FROM_FILE)
    about = "number of runs of a group that are trained at the same time (default: as many as the CPU cores allow)"
    command.add_argument("--workers", type=int, metavar="N", help=about)
    command = _add(
        group,
        "resume",
        "flows.cli.train_command:resume",
        "resume a run; the result is bit for bit that of an uninterrupted run",
    )
    command.add_argument("run_dir", help=RUN_DIR)
    about = "new values, as key=value, of keys that do not affect learning, for example metric.log_every=1000"
    command.add_argument("overrides", nargs="*", default=[], help=about)

    about = "train a run further in a new run, from its complete state, with a larger budget or other settings"
    command = _add(group, "extend", "flows.cli.train_command:extend", about)
    command.add_argument("source", help=SOURCE)
    about = "new values, as key=value, for example algo.total_steps=200000; all other keys are those of the source"
    command.add_argument("overrides", nargs="*", default=[], help=about)

    _add_sweep(group)
    _add_policy_commands(group)
    command = _add(group, "config", "flows.cli.config:config", "print the composed config without training")
    command.add_argument("overrides", nargs="*", default=[], help=KEYS)
    command.add_argument("-f", "--file", default="", metavar="FILE", help=FROM_FILE)
    about = "print it in the form of params.yaml, the parameter file of the DVC pipelines (interpolations not resolved)"
    command.add_argument("--params", action="store_true", help=about)
    about = "compare what two runs or checkpoints learned, bit for bit; exit code 1 if they differ"
    command = _add(group, "diff", "flows.runs.diff:diff", about)
    command.add_argument("first", help="first run or checkpoint directory; the run may still be training")
    command.add_argument("second", help="second run or checkpoint directory; the run may still be training")
    _add_reproduce(group)
    _add_runs(group)
    _add_reap(group)
    _add_compare(group)
    _add(group, "agents", "flows.cli.catalogue:agents", "list algorithms with their papers, spaces and presets")
    about = "list environment suites and missing packages, the ids of one suite, or the ids that contain a word"
    command = _add(group, "envs", "flows.cli.catalogue:envs", about)
    about = "name of a suite, for example atari, or part of an environment id"
    command.add_argument("words", nargs="*", default=[], metavar="NAME", help=about)
    _add_registry(group)
    _add_servers(group)
    about = "run one stage of a run; the stage make-env creates the run directory"
    command = _add(group, "stage", "flows.cli.stage:stage", about)
    command.add_argument("name", choices=STAGES, help="stage to run")
    command.add_argument("run_dir", help=RUN_DIR)
    command.add_argument("overrides", nargs="*", default=[], help=f"only for make-env or with --params: {KEYS}")
    command.add_argument("--params", metavar="FILE", help=PARAMS)
    return root


def _add(group: Any, name: str, calls: str, help: str) -> Parser:
    command = group.add_parser(name, help=help, description=help)
    command.set_defaults(calls=calls)
    return command


def _add_reproduce(group: Any) -> None:
    about = (
        "repeat the training of a run or a registered model from its recorded lineage and compare the bits; exit code "
        "1 if they differ"
    )
    command = _add(group, "reproduce", "flows.cli.train_command:reproduce", about)
    command.add_argument("source", help="run directory or models:/NAME@ALIAS")
    about = "folder of the second run (default: the folder of the first run with the suffix _again)"
    command.add_argument("--run-dir", default="", metavar="DIR", help=about)
    command.add_argument("--json", dest="as_json", action="store_true", help="print the result as JSON")


def _add_compare(group: Any) -> None:
    about = "compare groups of runs statistically: print a verdict and write a page with figures"
    command = _add(group, "compare", "flows.cli.compare_command:compare", about)
    command.add_argument("sides", nargs="+", metavar="SIDE", help=SIDE)
    command.add_argument("--out", default="report", metavar="FOLDER", help="folder of the page (default: report)")
    about = (
        "return for which the time to reach it is reported; with several environments a normalized score, 0 = random "
        "policy, 1 = solved (default: solved)"
    )
    command.add_argument("--threshold", type=_finite, metavar="X", help=about)
    about = "compare runs by a number of env.info_keys or a callback's metric, for example is_success (default: return)"
    command.add_argument("--metric", metavar="NAME", help=about)
    about = "folder that is searched for groups (default: SHEPHERD_RUN_ROOT, or runs if that is not set)"
    command.add_argument("--runs", metavar="FOLDER", help=about)
    command.add_argument("--json", action="store_true", dest="as_json", help="print all results as JSON")


def _add_runs(group: Any) -> None:
    command = _add(group, "runs", "flows.cli.runs_command:runs", "list runs, newest first, with status and return")
    command.add_argument("chosen", nargs="?", default="", metavar="FILTER", help=RUNS)
    about = "folder that is searched for runs (default: SHEPHERD_RUN_ROOT, or runs if that is not set)"
    command.add_argument("--runs", dest="folder", metavar="FOLDER", help=about)
    command.add_argument("--last", type=int, metavar="N", help="list only the N newest runs")
    command.add_argument("--json", action="store_true", dest="as_json", help="print the runs as JSON")


def _add_reap(group: Any) -> None:
    about = (
        "set the status `died`, in files and MLflow, of runs whose process died; print the command that resumes each"
    )
    command = _add(group, "reap", "flows.cli.reap:reap", about)
    about = "folders with runs (default: SHEPHERD_RUN_ROOT, or runs if that is not set)"
    command.add_argument("folders", nargs="*", default=[], help=about)
    about = "include runs that were started on another machine; use it only if that machine no longer exists"
    command.add_argument("--elsewhere", action="store_true", help=about)
    command.add_argument(
        "--resume", dest="resume_runs", action="store_true", help="resume these runs, one after another"
    )
    command.add_argument("--json", dest="as_json", action="store_true", help="print the result as JSON")


def _add_policy_commands(group: Any) -> None:
    """Add `evaluate`, `collect`, `export`, `enjoy` and `dream`, which use a trained policy."""
    about = "evaluate the policy of a run, a checkpoint or a registered model"
    command = _add(group, "evaluate", "flows.cli.evaluation_commands:evaluate", about)
    command.add_argument("source", help=SOURCE)
    about = "number of greedy episodes and number of stochastic episodes (default: 100)"
    command.add_argument("--episodes", type=int, default=100, metavar="N", help=about)
    command.add_argument("--checkpoint", help=CHECKPOINT)
    about = "number of the set of evaluation seeds (default: 1, the set of the run's final evaluation)"
    command.add_argument("--round", type=int, default=1, help=about)
    command.add_argument("--video", action="store_true", help="also record one greedy episode as a video")
    about = "collect episodes of a policy as a Minari dataset, from which a replay buffer can be filled"
    command = _add(group, "collect", "flows.cli.evaluation_commands:collect", about)
    command.add_argument("source", help=SOURCE)
    about = "name of the new dataset, [FOLDER/]NAME-vNUMBER, in MINARI_DATASETS_PATH (default: ~/.minari/datasets)"
    command.add_argument("--minari", required=True, metavar="NAME", help=about)
    command.add_argument("--episodes", type=int, default=100, metavar="N", help="number of episodes (default: 100)")
    command.add_argument("--checkpoint", help=CHECKPOINT)
    about = "sampled from the policy, its most likely actions, or uniformly random actions (default: sampled)"
    command.add_argument("--actions", choices=("sampled", "greedy", "random"), default="sampled", help=about)
    about = "number of the set of environment seeds (default: 0); no training and no evaluation uses these seeds"
    command.add_argument("--round", type=int, default=0, help=about)
    about = "write the greedy policy to files that run without Shepherd: ONNX, torch.export, or both"
    command = _add(group, "export", "flows.cli.evaluation_commands:export", about)
    command.add_argument("source", help=SOURCE)
    about = "ONNX file to write, for example policy.onnx; needs pip install -e '.[onnx]'"
    command.add_argument("--onnx", metavar="FILE", help=about)
    about = "file to write for torch.export.load, for example policy.pt2"
    command.add_argument("--torch", metavar="FILE", help=about)
    command.add_argument("--checkpoint", help=CHECKPOINT)
    about = "show a policy playing in a window; without a display, record a video"
    command = _add(group, "enjoy", "flows.cli.evaluation_commands:enjoy", about)
    command.add_argument("source", help=SOURCE)
    command.add_argument("--episodes", type=int, default=3, metavar="N", help="number of episodes (default: 3)")
    about = "write pictures and videos of a world model: reconstructed episodes and imagined trajectories"
    command = _add(group, "dream", "flows.cli.evaluation_commands:dream", about)
    command.add_argument("source", help=SOURCE)
    command.add_argument("--checkpoint", help=CHECKPOINT)


def _add_sweep(group: Any) -> None:
    about = "search for good hyperparameters, then train the best and the default configuration on new seeds"
    command = _add(group, "sweep", "flows.cli.sweep_command:sweep", about)
    command.add_argument("overrides", nargs="*", default=[], help=SWEEP)
    command = _add(group, "sweep resume", "flows.cli.sweep_command:resume", "resume a sweep")
    command.add_argument("name", help="name or folder of the sweep")
    about = "new values of sweep.trials, sweep.workers or sweep.confirm_seeds, as key=value"
    command.add_argument("overrides", nargs="*", default=[], help=about)
    about = "also resume failed trials, each from its last checkpoint"
    command.add_argument("--failed", action="store_true", help=about)
    command = _add(group, "sweep status", "flows.cli.sweep_command:status", "print the state and results of a sweep")
    command.add_argument("name", help="name or folder of the sweep")
    command.add_argument("--json", action="store_true", dest="as_json", help="print the state as JSON")


def _add_servers(group: Any) -> None:
    command = _add(group, "ui", "flows.cli.serving:ui", "start the web pages of MLflow, protected by a password")
    about = "start the Optuna dashboard of this sweep instead of MLflow"
    command.add_argument("--sweep", default="", metavar="NAME", help=about)
    command.add_argument("--port", type=int, default=5000, metavar="N", help="port on this machine (default: 5000)")
    about = "serve a registered model over HTTP, protected by a password"
    command = _add(group, "serve", "flows.cli.serving:serve", about)
    about = "registered model: models:/NAME@ALIAS or models:/NAME/VERSION; if it needs a plugin, add plugins=[MODULE]"
    command.add_argument("model", help=about)
    command.add_argument("--port", type=int, default=5001, metavar="N", help="port on this machine (default: 5001)")


def _add_registry(group: Any) -> None:
    about = "list registered models, promote a version to champion, or restore the previous champion"
    registry = _add(group, "registry", "flows.cli.registry:list_versions", about)
    registry.set_defaults(name=None)
    actions = registry.add_subparsers(metavar="ACTION")
    about = "list all versions, newest first; for a single model also the history of its champions"
    command = _add(actions, "list", "flows.cli.registry:list_versions", about)
    command.add_argument("name", nargs="?", help="list only this model, for example ppo-CartPole-v1")
    promote = _add(actions, "promote", "flows.cli.registry:promote", "make a version the champion by hand")
    about = "make the previous champion the champion again"
    rollback = _add(actions, "rollback", "flows.cli.registry:rollback", about)
    for command in (promote, rollback):
        command.add_argument("name", help="name of the model, for example ppo-CartPole-v1")
        command.add_argument("--why", default="", metavar="TEXT", help="reason, stored in the history of the model")
    promote.add_argument("version", help="version number")
