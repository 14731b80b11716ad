"""Command lines of SheepRL, Hydra and Lightning, of any of their versions, as the line that they stand for here.

Tables say what their words mean. What is more than a matter of spelling is a `UserError` that names the line to type.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.cli.launchers import find_fabric_run_settings, without_launcher
from flows.cli.parser import parser
from flows.config.mistakes import is_of_sheeprl
from flows.config.search_path import VARIABLES
from flows.config.yaml_files import groups, presets
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import arguments
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

# SheepRL's programs, as commands or scripts -> commands here.
PROGRAMS = {
    "sheeprl": "train",
    "sheeprl-eval": "evaluate",
    "sheeprl-agents": "agents",
    "available-agents": "agents",
    "sheeprl-registration": "register-model",
    "sheeprl-model-manager": "register-model",
}
# Hydra's options, each with its short form and whether a value follows -> the command that is meant by it, "" for none,
# a variable that takes the value, or a sentence for what is no spelling. {group} is the command that trains a group.
HYDRA_OPTIONS = {
    ("--cfg", "-c", True): "config",
    ("--resolve", "", False): "",
    ("--package", "-p", True): "",
    ("--run", "-r", False): "",
    ("--info", "-i", False): "help",
    ("--hydra-help", "", False): "help",
    ("--config-dir", "-cd", True): VARIABLES[0],
    ("--config-path", "-cp", True): VARIABLES[0],
    ("--multirun", "-m", False): "this is Hydra's option; here several values train a group of runs: `{group}`",
    ("--config-name", "-cn", True): "this is Hydra's option; here a preset is named by exp=NAME",
    ("--experimental-rerun", "", True): "this is Hydra's option; here `shepherd resume RUN` goes on with a run",
}
# Arguments of SheepRL's first versions (`ppo --env_id CartPole-v1`) whose key has another name now, or one of several:
# that which the algorithm has.
OLD_ARGUMENTS = {
    "env_id": "env.id",
    "mask_vel": "env.mask_velocities",
    "grayscale_obs": "env.grayscale",
    "memmap_buffer": "buffer.memmap",
    "checkpoint_every": "checkpoint.every",
    "checkpoint_path": "checkpoint.resume_from",
    "torch_deterministic": "torch_backends_cudnn_deterministic",
    "actor_hidden_size": ("algo.actor.dense_units", "algo.actor.hidden_size"),
    "critic_hidden_size": ("algo.critic.dense_units", "algo.critic.hidden_size"),
    "cnn_keys": "algo.cnn_keys.encoder",
    "mlp_keys": "algo.mlp_keys.encoder",
}
OLD_VALUES = {("max_episode_steps", "-1"): "null", ("frame_stack", "-1"): "1"}
# What SheepRL's evaluation takes and ours has from the run.
LEFT_OUT = ("fabric.", "seed=", "float32_matmul_precision=", "num_threads=", "disable_grads=", "log_root=", "hydra.")
OVERRIDE = re.compile(r"~|[^-][^=]*=")
OPTION = re.compile(r"--?[A-Za-z]")


class CommandLine(NamedTuple):
    """A command line of ours: its words, a folder of config files before it, and what of the other was left out."""

    words: list[str]
    search_path: str = ""
    left_out: Sequence[str] = ()

    def __str__(self) -> str:
        before = f"{VARIABLES[0]}={shlex.quote(self.search_path)} " if self.search_path else ""
        without = f" (without {' '.join(self.left_out)}, which a run's evaluation has from it)" if self.left_out else ""
        return f"{before}{shlex.join(['shepherd', *self.words])}{without}"


def translate(typed: Sequence[str]) -> CommandLine:
    """The line that a command line stands for, the same where it is one of ours; a `UserError` where none does."""
    words = [*without_launcher(typed)]
    command, words = _command(words)
    if (asked := find_fabric_run_settings()) is not None:
        line = CommandLine([command or "train", *words, *asked])
        raise UserError(
            f"LT_CLI_USED is set, as `fabric run` does: shepherd starts its processes itself; type `{line}`"
        )
    if command in ("evaluate", "enjoy"):
        return _evaluation(command, words)
    if command == "register-model":
        return CommandLine(["stage", command, _run_of(words)])
    if command not in ("train", "config"):
        return CommandLine([command, *words] if command else words)
    if ours := [word for word in words if re.match(r"sweep[.=]", word)]:
        raise UserError(f"{ours[0]}: of a search over many runs; type `{CommandLine(['sweep', *words])}`")
    return _training(command, words)


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command of ours that is meant, "" where none is known, and the words behind it."""
    first = words[0] if words else ""
    program = Path(first).name.removesuffix(".py").replace("_", "-")
    if {"--sheeprl_help", "--sheeprl-help"} & set(words):
        return "agents", []
    if program in PROGRAMS:
        return PROGRAMS[program], words[1:]
    if first in parser().commands:
        return first, words[1:]
    if first.endswith(".py"):
        raise UserError(
            f"{first}: a script of your own is run by Python; in it, `from flows import run` has SheepRL's run(cfg); "
            f"without it, type `{CommandLine(['train', *words[1:]])}`"
        )
    if first.startswith("checkpoint_path="):
        return "evaluate", words
    if OVERRIDE.match(first) or _hydra_option(first) or _preset(first) or _key_of(first.partition("=")[0]):
        return "train", words
    return "", words


def _preset(word: str) -> bool:
    return word.isidentifier() and (word in presets() or is_of_sheeprl("exp", word))


def _hydra_option(word: str) -> tuple[str, bool] | None:
    """The meaning of one of Hydra's options here, and whether its value is the next word; None for another word."""
    option, equals, _ = word.partition("=")
    for (long, short, valued), meaning in HYDRA_OPTIONS.items():
        if option and option in (long, short):
            return meaning, valued and not equals
    return None


def _training(command: str, words: list[str]) -> CommandLine:
    """A training, or its config, with Hydra's options and the arguments of SheepRL's first versions as overrides."""
    if words and _preset(words[0]):
        words = [f"exp={words[0]}", *words[1:]]
    made: list[str] = []
    search_path, rest = "", list(words)
    while rest:
        word = rest.pop(0)
        if hydra := _hydra_option(word):
            meaning, follows = hydra
            value = (rest.pop(0) if rest else "") if follows else word.partition("=")[2]
            if meaning == "config":
                command = meaning
            elif meaning == "help":
                made.append("--help")
            elif meaning == VARIABLES[0]:
                search_path = value
            elif meaning and not ("{group}" in meaning and any(other.startswith("group=") for other in words)):
                raise UserError(f"{word}: {meaning.format(group=_group([*made, *rest]))}")
        elif key := _key_of(word.partition("=")[0], _algorithm([*made, *rest])):
            made.append(_setting(key, word, rest))
        else:
            made.append(word)
    return CommandLine([command, *map(_with_folder, made)], search_path)


def _algorithm(words: Sequence[str]) -> str:
    """The algorithm whose preset is named among the words, by its name; "" where that does not tell."""
    chosen = next((word[4:] for word in words if word.startswith("exp=")), "")
    if "--exp" in words[:-1]:
        chosen = words[words.index("--exp") + 1]
    return max((name for name in ALGORITHMS if f"{chosen}_".startswith(f"{name}_")), key=len, default="")


def _key_of(argument: str, algorithm: str = "") -> str:
    """The key that an argument of SheepRL's first versions sets (`--num_envs`, `--no_anneal_lr`), or its group's name.

    "" where there is none; of an algorithm's keys those of `algorithm`, "" = of any.
    """
    name = argument.removeprefix("--").removeprefix("no_")
    if not argument.startswith("--") or not name:
        return ""
    modules = [ALGORITHMS[algorithm]] if algorithm else ALGORITHMS.values()
    keys = [a.key for module in modules for a in arguments(module.Config, "algo.")]
    keys += [argument.key for argument in arguments(RunConfig)]
    same = sorted((key for key in keys if key.rpartition(".")[2] == name), key=lambda key: key.count("."))
    old = OLD_ARGUMENTS.get(name, same)
    named = [old] if isinstance(old, str) else [key for key in old if key in keys]
    groups_named = [name] if name in groups() and name != "sweep" else []
    return next(iter([*groups_named, *named]), "")


def _setting(key: str, word: str, rest: list[str]) -> str:
    """`key=value` of an argument, whose value is behind its `=` or in the next words, which are taken from `rest`."""
    argument, equals, value = word.removeprefix("--").partition("=")
    values = [value] if equals else []
    while rest and not equals and not OPTION.match(rest[0]) and not OVERRIDE.match(rest[0]):
        values.append(rest.pop(0))
        if not key.endswith("keys.encoder"):
            break
    if key.endswith("keys.encoder"):
        return f"{key}=[{','.join(values)}]"
    value = values[0] if values else str(not argument.startswith("no_")).lower()
    return f"{key}={OLD_VALUES.get((argument, value), value)}"


def _group(words: Sequence[str]) -> CommandLine:
    """The command that trains a run for each of the values; for each of three seeds where no key has several."""
    several = any(re.fullmatch(r"[^\[{(]*,[^\[{(]*", word) for word in words)
    return CommandLine(["train", *(words or ["exp=ppo"]), *([] if several else ["seed=1,2,3"]), "group=NAME"])


def _evaluation(command: str, words: list[str]) -> CommandLine:
    """SheepRL's `checkpoint_path=… env.capture_video=True` as a folder and options."""
    made: list[str] = []
    left_out: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "checkpoint_path":
            made.insert(0, _with_folder(word).partition("=")[2])
        elif key == "env.capture_video":
            made += ["--video"] if value.lower() == "true" and command == "evaluate" else []
        elif word.startswith(LEFT_OUT):
            left_out.append(word)
        elif re.match(r"[\w.]+=", word) and not Path(word).exists():
            raise UserError(f"{word}: an evaluation takes the config of its run; `shepherd {command} --help` says more")
        else:
            made.append(word)
    return CommandLine([command, *made], left_out=left_out)


def _run_of(words: Collection[str]) -> str:
    """The run that SheepRL's registration means by `checkpoint_path=`; the other words say what a run has itself."""
    path = next((word.partition("=")[2] for word in words if word.startswith("checkpoint_path=")), "")
    if not path or not RunDirectory(path).identity.exists():
        raise UserError(
            f"checkpoint_path={path}: not a run made here; `shepherd stage register-model RUN`, with the folder of "
            "one, registers the checkpoint that it has chosen, its best"
        )
    return path


def _with_folder(word: str) -> str:
    """A setting that names a checkpoint as SheepRL does, `RUN/…/ckpt_8192_0.ckpt`, with the folder of ours it means."""
    key, _, path = word.partition("=")
    if not path.endswith(".ckpt"):
        return word
    folder = next((folder for folder in Path(path).parents if RunDirectory(folder).identity.exists()), None)
    if folder is None or Path(path).is_file():
        raise UserError(
            f"{word}: SheepRL's .ckpt files cannot be read; type a folder of a run made here, as "
            f"{key}=runs/a/checkpoints/8192"
        )
    from rlcore.store.checkpoint import resolve  # torch

    number = re.search(r"\d+", Path(path).stem)
    return f"{key}={resolve(RunDirectory(folder), number[0] if number else 'latest')}"
