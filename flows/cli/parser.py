"""Everything that may be typed: the commands of `shepherd`, their arguments, and the function that each calls.

Functions are named, not imported, so that a mistake is told in no time; a test holds the names against the code.
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
KEYS = "key=value, as exp=ppo env.id=Acrobot-v1; `shepherd train -h` lists every key"
SWEEP = "sweep=PRESET, sweep.trials=20 and the like, algo.gamma=interval(0.9,1) and the like, and keys as for train"
RUN_DIR = "the run's folder"
SOURCE = "run directory, checkpoint directory or models:/NAME@alias"
SIDE = "group (group=NAME of the runs), sweep, folder or glob of runs, or mlflow:EXPERIMENT?FILTER"
POSITIONALS = ("source", "run_dir", "first", "second", "sides", "folders", "name", "version", "words")
MISSING = "the following arguments are required: "  # argparse's words
PARAMS = (
    "bring the run to the parameters in FILE (params.yaml): made where there is none; a run that learned with other "
    "parameters or other code is set aside, inside its folder"
)


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are sentences; `commands` are the words that may come first."""

    commands: Mapping[str, Any] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the mistake as a `UserError`; what is missing is told by its place in the line."""
        if message.startswith(MISSING):
            usage = re.sub(r"\[-[^]]*\]", "", self.format_usage().removeprefix(f"usage: {self.prog}"))
            missing = " and ".join(_place(word) for word in message.removeprefix(MISSING).split(", "))
            typed = f"`{' '.join([self.prog, *map(_place, usage.split())])}`; `{self.prog} --help` says more"
            raise UserError(f"{missing}: missing; type {typed}")
        raise UserError(f"{message}; `{self.prog} --help` says what may be typed")


def _finite(text: str) -> float:
    """Return the number in `text`; an `ArgumentTypeError`, which argparse reports, if it is no finite one."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text}: must be a finite number")


def _place(word: str) -> str:
    """A word of a usage line, in capitals where it stands for what is to be typed."""
    return word if word.startswith(("-", "{")) else word.upper()


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The function that a command line means, as `module:name`, and the values of its arguments.

    Overrides may stand before and behind the options, of which argparse sees the first ones only.
    """
    if not arguments:
        raise UserError("no command is named; `shepherd --help` lists them")
    command = arguments[0]
    if command.startswith("-") and command not in ("-h", "--help", "--version"):
        raise UserError(f"{command}: not known here; `shepherd --help` says what may be typed")
    if command == "train" and {"-h", "--help"} & set(arguments):
        return HELP, {"words": [a for a in arguments[1:] if a not in ("-h", "--help")]}
    if command == "sweep" and {"-h", "--help"} & set(arguments) and arguments[1] not in ("resume", "status"):
        return SWEEP_HELP, {}
    if command == "sweep" and arguments[1:2] in (["resume"], ["status"]):
        arguments = [f"sweep {arguments[1]}", *arguments[2:]]
    root = parser()
    if not command.startswith("-") and command not in root.commands:
        shown = command.strip() or repr(command)
        raise UserError(f"{shown}: no such command{nearest(command, root.commands)}; `shepherd --help` lists them")
    options, rest = root.parse_known_args(arguments)
    values = vars(options)
    if rest and ("overrides" not in values or any(word.startswith("-") for word in rest)):
        known = re.findall(r"--[\w-]+", root.commands[arguments[0]].format_help())
        meant = nearest(rest[0], known) if rest[0].startswith("-") else ""
        raise UserError(f"{' '.join(rest)}: not known here{meant}; `shepherd {command} --help` says what may be typed")
    if rest:
        values["overrides"] = [*values["overrides"], *rest]
    for name in POSITIONALS:
        given = values.get(name)
        if "" in arguments and (given == "" or (isinstance(given, list) and "" in given)):
            raise UserError(f"{name.upper()}: must not be empty; `shepherd {command} --help` says what may be typed")
    for name in ("episodes", "workers"):
        if (values.get(name) or 1) < 1 or values.get(name) == 0:
            raise UserError(f"--{name} {values[name]}: must be 1 or more")
    if not 0 <= (values.get("round") or 0) < 10**9:
        raise UserError(f"--round {values['round']}: must be 0 to 999999999")
    return values.pop("calls"), values


def parser() -> Parser:
    """The parser of all commands; `calls` is the function of the one that was typed."""
    root = Parser(prog="shepherd", description="Reinforcement learning as reproducible experiment stages.")
    root.add_argument("--version", action="version", version=f"shepherd {__version__}")
    group = root.add_subparsers(required=True, metavar="COMMAND")
    root.commands = group.choices

    command = _add(
        group, "train", "flows.cli.train_command:train", "train an agent: from a config to a registered model"
    )
    command.add_argument("overrides", nargs="*", default=[], help=f"{KEYS}; several values: seed=0,1,2 group=NAME")
    about = "runs of a group at once (as many as there are processor cores for)"
    command.add_argument("--workers", type=int, metavar="N", help=about)
    command = _add(
        group, "resume", "flows.cli.train_command:resume", "continue a run, bit for bit as if it had never stopped"
    )
    command.add_argument("run_dir", help=RUN_DIR)
    about = "keys that change nothing learned, as metric.log_every=1000"
    command.add_argument("overrides", nargs="*", default=[], help=about)

    _add_sweep(group)
    _add_judges(group)
    command = _add(group, "config", "flows.cli.config:config", "print the composed config; run nothing")
    command.add_argument("overrides", nargs="*", default=[], help=KEYS)
    about = "as the params.yaml of the DVC pipelines: interpolations kept"
    command.add_argument("--params", action="store_true", help=about)
    about = "whether two runs or checkpoints learned the same bits; exit code 1 if not"
    command = _add(group, "diff", "flows.runs.diff:diff", about)
    command.add_argument("first", help="run or checkpoint directory, also of a run that is being trained")
    command.add_argument("second", help="likewise")
    _add_reproduce(group)
    _add_reap(group)
    _add_compare(group)
    _add(group, "agents", "flows.cli.catalogue:agents", "list algorithms, with their papers, spaces and presets")
    about = "list suites of environments and missing extras; with a name, the ids of a suite or those that contain it"
    command = _add(group, "envs", "flows.cli.catalogue:envs", about)
    command.add_argument(
        "words", nargs="*", default=[], metavar="NAME", help="a suite, as atari, or an id or part of it"
    )
    _add_registry(group)
    _add_servers(group)
    about = "run one stage on a run directory (make-env makes it from overrides)"
    command = _add(group, "stage", "flows.cli.stage:stage", about)
    command.add_argument("name", choices=STAGES)
    command.add_argument("run_dir", help=RUN_DIR)
    command.add_argument("overrides", nargs="*", default=[], help=f"make-env, or with --params: {KEYS}")
    command.add_argument("--params", metavar="FILE", help=PARAMS)
    return root


def _add(group: Any, name: str, calls: str, help: str) -> Parser:
    command = group.add_parser(name, help=help, description=help)
    command.set_defaults(calls=calls)
    return command


def _add_reproduce(group: Any) -> None:
    about = (
        "train a run or a registered version again from its lineage and compare the bits; exit code 1 if they differ"
    )
    command = _add(group, "reproduce", "flows.cli.reproduce_command:reproduce", about)
    command.add_argument("source", help="run directory or models:/NAME@alias")
    about = "the second run's folder (beside the first: NAME_again)"
    command.add_argument("--run-dir", default="", metavar="DIR", help=about)
    command.add_argument("--json", dest="as_json", action="store_true", help="print the result as JSON")


def _add_compare(group: Any) -> None:
    about = "which of several groups of runs is better, beyond the noise: a verdict, a page, figures"
    command = _add(group, "compare", "flows.cli.compare_command:compare", about)
    command.add_argument("sides", nargs="+", metavar="SIDE", help=SIDE)
    command.add_argument("--out", default="report", metavar="FOLDER", help="where the page is written (report)")
    about = "return that runs are timed to; over several environments 0 is random and 1 is solved (solved)"
    command.add_argument("--threshold", type=_finite, metavar="X", help=about)
    about = "where groups are looked for (SHEPHERD_RUN_ROOT, else runs)"
    command.add_argument("--runs", metavar="FOLDER", help=about)
    command.add_argument("--json", action="store_true", dest="as_json", help="print the figures as JSON")


def _add_reap(group: Any) -> None:
    about = "mark runs whose process is gone, here and in MLflow, and say how each goes on"
    command = _add(group, "reap", "flows.cli.reap:reap", about)
    command.add_argument("folders", nargs="*", default=[], help="where runs lie (SHEPHERD_RUN_ROOT, else runs)")
    about = "also runs that were led on another machine, which is no more"
    command.add_argument("--elsewhere", action="store_true", help=about)
    command.add_argument("--resume", dest="go_on", action="store_true", help="go on with each, one after the other")
    command.add_argument("--json", dest="as_json", action="store_true", help="print JSON")


def _add_judges(group: Any) -> None:
    """`evaluate`, `collect`, `enjoy` and `dream`, which play with a policy that is there."""
    about = "judge a run, a checkpoint or a registered model over whole episodes"
    command = _add(group, "evaluate", "flows.cli.judge:evaluate", about)
    command.add_argument("source", help=SOURCE)
    about = "episodes, greedy and stochastic each (100)"
    command.add_argument("--episodes", type=int, default=100, metavar="N", help=about)
    command.add_argument("--checkpoint", help="latest, best or a number of policy steps (the run's chosen one)")
    about = "set of evaluation seeds (1: the run's own last evaluation)"
    command.add_argument("--round", type=int, default=1, help=about)
    command.add_argument("--video", action="store_true", help="also record one greedy episode")
    about = "play episodes with a policy and write them as a dataset that Minari reads and a memory may begin with"
    command = _add(group, "collect", "flows.cli.judge:collect", about)
    command.add_argument("source", help=SOURCE)
    about = "of the new dataset, [FOLDER/]NAME-vNUMBER; it lies in MINARI_DATASETS_PATH, else ~/.minari/datasets"
    command.add_argument("--minari", required=True, metavar="NAME", help=about)
    command.add_argument("--episodes", type=int, default=100, metavar="N", help="episodes (100)")
    command.add_argument("--checkpoint", help="latest, best or a number of policy steps (the run's chosen one)")
    about = "sampled from the policy, its most likely ones, or uniformly random ones (sampled)"
    command.add_argument("--actions", choices=("sampled", "greedy", "random"), default="sampled", help=about)
    about = "set of environment seeds (0), which no training and no evaluation has"
    command.add_argument("--round", type=int, default=0, help=about)
    command = _add(group, "enjoy", "flows.cli.judge:enjoy", "watch a policy play; without a display: make a video")
    command.add_argument("source", help=SOURCE)
    command.add_argument("--episodes", type=int, default=3, metavar="N", help="episodes to show (3)")
    about = "look into a world model: episodes beside what it makes of them, and its own dreams, as pictures and films"
    command = _add(group, "dream", "flows.cli.judge:dream", about)
    command.add_argument("source", help=SOURCE)
    command.add_argument("--checkpoint", help="latest, best or a number of policy steps (the run's chosen one)")


def _add_sweep(group: Any) -> None:
    about = "find good hyperparameters: many trainings, then the winner beside the default configuration on fresh seeds"
    command = _add(group, "sweep", "flows.cli.sweep_command:sweep", about)
    command.add_argument("overrides", nargs="*", default=[], help=SWEEP)
    command = _add(group, "sweep resume", "flows.cli.sweep_command:resume", "go on with a sweep")
    command.add_argument("name", help="of the sweep, or its folder")
    command.add_argument("overrides", nargs="*", default=[], help="sweep.trials, sweep.workers or sweep.confirm_seeds")
    about = "take trials that have failed up again, from their last checkpoints"
    command.add_argument("--failed", action="store_true", help=about)
    command = _add(group, "sweep status", "flows.cli.sweep_command:status", "what a sweep has come to so far")
    command.add_argument("name", help="of the sweep, or its folder")
    command.add_argument("--json", action="store_true", dest="as_json", help="for a program")


def _add_servers(group: Any) -> None:
    command = _add(group, "ui", "flows.cli.serving:ui", "show all runs in MLflow's pages, behind a password")
    command.add_argument("--sweep", default="", metavar="NAME", help="show a sweep in Optuna's pages instead")
    command.add_argument("--port", type=int, default=5000, metavar="N", help="port on this machine (5000)")
    about = "serve a registered model over HTTP, behind a password"
    command = _add(group, "serve", "flows.cli.serving:serve", about)
    command.add_argument("model", help="models:/NAME@alias or models:/NAME/VERSION")
    command.add_argument("--port", type=int, default=5001, metavar="N", help="port on this machine (5001)")


def _add_registry(group: Any) -> None:
    about = "registered models: list them, make one champion, go back"
    registry = _add(group, "registry", "flows.cli.registry:list_versions", about)
    registry.set_defaults(name=None)
    actions = registry.add_subparsers(metavar="ACTION")
    about = "every version, newest first; of one model also who was champion, and why"
    command = _add(actions, "list", "flows.cli.registry:list_versions", about)
    command.add_argument("name", nargs="?", help="of one model, as ppo-CartPole-v1")
    promote = _add(actions, "promote", "flows.cli.registry:promote", "make a version the champion by hand")
    about = "make the champion before the present one champion again"
    rollback = _add(actions, "rollback", "flows.cli.registry:rollback", about)
    for command in (promote, rollback):
        command.add_argument("name", help="of the model, as ppo-CartPole-v1")
        command.add_argument("--why", default="", metavar="TEXT", help="a reason for the history")
    promote.add_argument("version", help="its number")
