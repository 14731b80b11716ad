"""`shepherd`: the command line. Exit codes: 0 done, 1 failure, 2 the user's mistake, 130 interrupted.

Heavy libraries are imported by the command that needs them, so that a mistake is told in a second.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Callable, Sequence

from flows.process.exits import told
from flows.process.signals import CODE, farewell, terminable
from rlcore import __version__
from rlcore.errors import UserError

STAGES = ("make-env", "collect", "train", "checkpoint", "evaluate", "register-model")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after `shepherd`; None = the process's own.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(50_000, 20, 20)  # imports make hundreds of thousands of objects, and all of them stay
        _warn_in_sentences()
    try:
        with terminable(for_good=argv is None):
            return told(lambda: _run(arguments))
    except KeyboardInterrupt:  # TrainingInterrupted is one
        print(farewell(), file=sys.stderr)
        return CODE
    finally:
        if argv is None:
            gc.freeze()  # nor looks Python through it all once more at its end


def _warn_in_sentences() -> None:
    """Our own warnings as lines of text; Prefect would print them with time and module."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    for name in ("rlcore", "flows"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False


def _run(arguments: list[str]) -> int:
    """Run one command."""
    from flows.settings import configure_environment

    if arguments[:1] == ["train"] and {"-h", "--help"} & set(arguments):
        return _help([a for a in arguments[1:] if a not in ("-h", "--help")])
    if not arguments:
        _parser().print_help()
        return 2
    options = _parse(arguments)
    configure_environment()
    return options.run(options)


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments; overrides may stand before and behind the options, of which argparse sees the first ones only."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "overrides") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shepherd", description="Reinforcement learning as reproducible experiment stages."
    )
    parser.add_argument("--version", action="version", version=f"shepherd {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(run=run)
        return command

    overrides = "key=value, as exp=ppo env.id=Acrobot-v1; `shepherd train -h` lists every key"
    command = add("train", _train, "train an agent: from a config to a registered model")
    command.add_argument("overrides", nargs="*", default=[], help=overrides)
    command = add("resume", _resume, "continue a run, bit for bit as if it had never stopped")
    command.add_argument("run_dir", help="the run's folder")
    command.add_argument(
        "overrides", nargs="*", default=[], help="keys that change nothing learned, as metric.log_every=1000"
    )
    command = add("evaluate", _evaluate, "judge a run, a checkpoint or a registered model over whole episodes")
    command.add_argument("source", help="run directory, checkpoint directory or models:/NAME@alias")
    command.add_argument(
        "--episodes", type=int, default=100, metavar="N", help="episodes, greedy and stochastic each (100)"
    )
    command.add_argument(
        "--checkpoint", default=None, help="latest, best or a number of env steps (the run's chosen one)"
    )
    command.add_argument(
        "--round", type=int, default=1, help="set of evaluation seeds (1: the run's own last evaluation)"
    )
    command.add_argument("--video", action="store_true", help="also record one greedy episode")
    command = add("enjoy", _enjoy, "watch a policy play; without a display: make a video")
    command.add_argument("source", help="run directory, checkpoint directory or models:/NAME@alias")
    command.add_argument("--episodes", type=int, default=3, metavar="N", help="episodes to show (3)")
    command = add("config", _config, "print the composed config; run nothing")
    command.add_argument("overrides", nargs="*", default=[], help=overrides)
    command.add_argument(
        "--params", action="store_true", help="as the params.yaml of the DVC pipelines: interpolations kept"
    )
    command = add("diff", _diff, "whether two runs or checkpoints learned the same bits; exit code 1 if not")
    command.add_argument("first", help="run or checkpoint directory, also of a run that is being trained")
    command.add_argument("second", help="likewise")
    add("agents", _agents, "what can be trained")
    add("envs", _envs, "on what, and which extra is missing")
    _add_registry(add("registry", _registry_list, "registered models: list them, make one champion, go back"))
    command = add("stage", _stage, "run one stage on a run directory (make-env makes it from overrides)")
    command.add_argument("name", choices=STAGES)
    command.add_argument("run_dir", help="the run's folder")
    command.add_argument("overrides", nargs="*", default=[], help="make-env, or with --params: " + overrides)
    command.add_argument(
        "--params",
        metavar="FILE",
        default=None,
        help="bring the run to the parameters in FILE (params.yaml): made where there is none; a run that learned with "
        "other parameters or other code is set aside, inside its folder",
    )
    return parser


def _add_registry(command: argparse.ArgumentParser) -> None:
    command.set_defaults(name=None)
    actions = command.add_subparsers(metavar="ACTION")

    def add(action: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        parser = actions.add_parser(action, help=help, description=help)
        parser.set_defaults(run=run)
        return parser

    listing = add("list", _registry_list, "every version, newest first; of one model also who was champion, and why")
    listing.add_argument("name", nargs="?", default=None, help="of one model, as ppo-CartPole-v1")
    promoting = add("promote", _registry_promote, "make a version the champion by hand")
    promoting.add_argument("name", help="of the model, as ppo-CartPole-v1")
    promoting.add_argument("version", help="its number")
    back = add("rollback", _registry_rollback, "make the champion before the present one champion again")
    back.add_argument("name", help="of the model, as ppo-CartPole-v1")
    for parser in (promoting, back):
        parser.add_argument("--why", default="", metavar="TEXT", help="a reason for the history")


def _help(words: Sequence[str]) -> int:
    from flows.cli.help import train_help

    print(train_help(words))
    return 0


def _train(options: argparse.Namespace) -> int:
    from flows.cli.train import train

    return train(options.overrides)


def _resume(options: argparse.Namespace) -> int:
    from flows.cli.train import resume

    return resume(options.run_dir, options.overrides)


def _evaluate(options: argparse.Namespace) -> int:
    from flows.cli.judge import evaluate

    if options.episodes < 1:
        raise UserError(f"--episodes {options.episodes}: must be 1 or more")
    return evaluate(options.source, options.checkpoint, options.episodes, options.round, options.video)


def _enjoy(options: argparse.Namespace) -> int:
    from flows.cli.judge import enjoy

    return enjoy(options.source, options.episodes)


def _diff(options: argparse.Namespace) -> int:
    from flows.runs.diff import diff

    return diff(options.first, options.second)


def _config(options: argparse.Namespace) -> int:
    from flows.config.compose import compose, dump, parameters

    values = parameters(options.overrides) if options.params else compose(options.overrides)[1]
    print(dump(values), end="")
    return 0


def _agents(options: argparse.Namespace) -> int:
    from flows.report.catalogue import agents_table
    from flows.report.terminal import show
    from rlcore.algorithms import ALGORITHMS

    show(agents_table(ALGORITHMS))
    return 0


def _envs(options: argparse.Namespace) -> int:
    from flows.report.catalogue import envs_table
    from flows.report.terminal import show
    from rlcore.envs.suites.gym import suites
    from rlcore.envs.suites.ids import load_plugins

    load_plugins()
    show(envs_table(suites()))
    return 0


def _registry_list(options: argparse.Namespace) -> int:
    from flows.cli.registry import list_versions

    list_versions(options.name)
    return 0


def _registry_promote(options: argparse.Namespace) -> int:
    from flows.cli.registry import promote

    print(promote(options.name, options.version, options.why))
    return 0


def _registry_rollback(options: argparse.Namespace) -> int:
    from flows.cli.registry import rollback

    print(rollback(options.name, options.why))
    return 0


def _stage(options: argparse.Namespace) -> int:
    from flows.cli.stage import stage

    return stage(options.name, options.run_dir, options.overrides, options.params)


if __name__ == "__main__":
    sys.exit(main())
