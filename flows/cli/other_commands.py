"""Translation of command lines of SheepRL, Hydra and Lightning (all versions) into command lines of `shepherd`.

Tables map words of those programs to words with the same meaning. If there is no such word, a `UserError` shows the
command line to type instead.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.cli.parser import parser
from flows.config.mistakes import is_of_sheeprl
from flows.config.yaml_files import VARIABLES, groups, presets
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

# Programs that start a script, as in `fabric run train.py`; those of Lightning take options of Fabric.
LAUNCHERS = ("lightning run model", "fabric run", "lightning run", "poetry run", "python3", "python")
# Fabric's options -> config keys; "" for options that only training on several machines needs.
FABRIC_OPTIONS = {name: f"fabric.{name}" for name in ("accelerator", "precision", "strategy", "devices", "num_nodes")}
FABRIC_OPTIONS |= dict.fromkeys(("node_rank", "main_address", "main_port"), "")
# SheepRL's programs, as commands or scripts -> commands here.
PROGRAMS = {
    "sheeprl": "train",
    "sheeprl-eval": "evaluate",
    "sheeprl-agents": "agents",
    "available-agents": "agents",
    "sheeprl-registration": "register-model",
    "sheeprl-model-manager": "register-model",
}
# Hydra's options: (long form, short form, takes a value) -> equivalent command, "" if the option is ignored, the
# environment variable that takes the value, or an error message. {group} is the command that trains a group.
HYDRA_OPTIONS = {
    ("--cfg", "-c", True): "config",
    ("--resolve", "", False): "",
    ("--package", "-p", True): "",
    ("--run", "-r", False): "",
    ("--info", "-i", False): "help",
    ("--hydra-help", "", False): "help",
    ("--config-dir", "-cd", True): VARIABLES[0],
    ("--config-path", "-cp", True): VARIABLES[0],
    ("--multirun", "-m", False): "Hydra's option is not supported; to train a group of runs, type `{group}`",
    ("--config-name", "-cn", True): "Hydra's option is not supported; choose a preset with exp=NAME",
    ("--experimental-rerun", "", True): "Hydra's option is not supported; resume a run with `shepherd resume RUN`",
}
# Arguments of SheepRL's first versions (`ppo --env_id CartPole-v1`) whose key is now called differently. If there are
# several keys, the one that the algorithm has is used.
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
# Settings of SheepRL's evaluation that our evaluation reads from the run.
LEFT_OUT = ("fabric.", "seed=", "float32_matmul_precision=", "num_threads=", "disable_grads=", "log_root=", "hydra.")
OVERRIDE = re.compile(r"~|[^-][^=]*=")
OPTION = re.compile(r"--?[A-Za-z]")


class CommandLine(NamedTuple):
    """Command line of `shepherd`, the result of a translation.

    Attributes:
        words: the words after `shepherd`.
        search_path: additional folder of config files; "" for none.
        left_out: words of the original command line that are ignored.
    """

    words: list[str]
    search_path: str = ""
    left_out: Sequence[str] = ()

    def __str__(self) -> str:
        before = f"{VARIABLES[0]}={shlex.quote(self.search_path)} " if self.search_path else ""
        without = f" (ignored: {' '.join(self.left_out)}; an evaluation uses the config of its run)"
        without = without if self.left_out else ""
        return f"{before}{shlex.join(['shepherd', *self.words])}{without}"


def translate(typed: Sequence[str]) -> CommandLine:
    """Translate a command line to one of `shepherd`; return it unchanged if it already is one.

    Raises UserError if `shepherd` has no equivalent command line.
    """
    words = [*_without_launcher(typed)]
    command, words = _command(words)
    if (settings := _find_fabric_run_settings()) is not None:
        line = CommandLine([command or "train", *words, *settings])
        raise UserError(
            "LT_CLI_USED is set, so `fabric run` started this process; shepherd starts the processes of all ranks "
            f"without `fabric run`: type `{line}`"
        )
    if command in ("evaluate", "enjoy"):
        return _evaluation(command, words)
    if command == "register-model":
        return CommandLine(["stage", command, _run_of(words)])
    if command not in ("train", "config"):
        return CommandLine([command, *words] if command else words)
    if ours := [word for word in words if re.match(r"sweep[.=]", word)]:
        raise UserError(f"{ours[0]}: is a setting of `shepherd sweep`; type `{CommandLine(['sweep', *words])}`")
    return _training(command, words)


def _without_launcher(typed: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without launchers such as `fabric run` or `python`.

    Options of `fabric run` are converted to `key=value` overrides, which are yielded last.
    """
    words, settings = [*typed], list[str]()
    while launcher := next((one for one in LAUNCHERS if words[: len(one.split())] == one.split()), None):
        words = words[len(launcher.split()) :]
        while launcher in ("python", "python3") and words and words[0].startswith("-"):
            option = words.pop(0)  # interpreter option such as -u
            if option in ("-W", "-X") and words:
                words.pop(0)
            if option == "-m":
                break
        while launcher.startswith(("lightning", "fabric")) and words and words[0].startswith("--"):
            option, equals, value = words.pop(0)[2:].replace("-", "_", 1).partition("=")
            if option not in FABRIC_OPTIONS:
                raise UserError(f"--{option}: unknown option of `{launcher}`; allowed: {', '.join(FABRIC_OPTIONS)}")
            value = value if equals else words.pop(0) if words else ""
            settings += [f"{key}={value}"] if (key := FABRIC_OPTIONS[option]) else []
    yield from words
    yield from settings


def _find_fabric_run_settings() -> list[str] | None:
    """Return the options of Lightning's command `fabric run`, as `key=value` overrides, if it started this process.

    The options are read from the LT_* environment variables that `fabric run` sets for the processes that it starts.
    Returns None if this process was not started by `fabric run`.
    """
    if os.environ.get("LT_CLI_USED", "0") == "0":
        return None
    given = ((key, os.environ.get(f"LT_{name.upper()}", "1")) for name, key in FABRIC_OPTIONS.items() if key)
    return [f"{key}={value}" for key, value in given if value != "1"]


def _command(words: list[str]) -> tuple[str, list[str]]:
    """Return the command of `shepherd` that a command line means ("" if unknown), and its other words."""
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
            f"{first}: shepherd does not run scripts; start the script with python (for SheepRL's run(cfg), import "
            f"`from flows import run`), or train without a script: `{CommandLine(['train', *words[1:]])}`"
        )
    if first.startswith("checkpoint_path="):
        return "evaluate", words
    if OVERRIDE.match(first) or _hydra_option(first) or _preset(first) or _key_of(first.partition("=")[0]):
        return "train", words
    return "", words


def _preset(word: str) -> bool:
    return word.isidentifier() and (word in presets() or is_of_sheeprl("exp", word))


def _hydra_option(word: str) -> tuple[str, bool] | None:
    """Look up a word in the table of Hydra's options; return None if the word is not an option of Hydra.

    Otherwise return two values: the option's entry in the table, and True if the next word is the option's value.
    """
    option, equals, _ = word.partition("=")
    for (long, short, valued), meaning in HYDRA_OPTIONS.items():
        if option and option in (long, short):
            return meaning, valued and not equals
    return None


def _training(command: str, words: list[str]) -> CommandLine:
    """Convert Hydra's options and the arguments of SheepRL's first versions to overrides of `train` or `config`."""
    if words and _preset(words[0]):
        words = [f"exp={words[0]}", *words[1:]]
    translated: list[str] = []
    search_path, rest = "", list(words)
    while rest:
        word = rest.pop(0)
        if hydra := _hydra_option(word):
            meaning, follows = hydra
            value = (rest.pop(0) if rest else "") if follows else word.partition("=")[2]
            if meaning == "config":
                command = meaning
            elif meaning == "help":
                translated.append("--help")
            elif meaning == VARIABLES[0]:
                search_path = value
            elif meaning and not ("{group}" in meaning and any(other.startswith("group=") for other in words)):
                raise UserError(f"{word}: {meaning.format(group=_group([*translated, *rest]))}")
        elif key := _key_of(word.partition("=")[0], _algorithm([*translated, *rest])):
            translated.append(_setting(key, word, rest))
        else:
            translated.append(word)
    return CommandLine([command, *map(_with_folder, translated)], search_path)


def _algorithm(words: Sequence[str]) -> str:
    """Return the algorithm to which the preset in the words belongs, according to the preset's name.

    Returns "" if it is unknown.
    """
    chosen = next((word[4:] for word in words if word.startswith("exp=")), "")
    if "--exp" in words[:-1]:
        chosen = words[words.index("--exp") + 1]
    return max((name for name in ALGORITHMS if f"{chosen}_".startswith(f"{name}_")), key=len, default="")


def _key_of(argument: str, algorithm: str = "") -> str:
    """Return the key or group that an argument of SheepRL's first versions sets (`--num_envs`, `--no_anneal_lr`).

    Return "" if there is none. Algorithm keys are those of `algorithm`, or of all algorithms if it is "".
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
    """Return the override `key=value` for an argument of SheepRL's first versions.

    The value is the text after `=` in `word`. If there is none, it is taken from the next words and removed from
    `rest`.
    """
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
    """Return a command line that trains a group of runs, one run for each value of the key that has several values.

    If no key in `words` has several values, the command line trains one run for each of three seeds.
    """
    several = any(re.fullmatch(r"[^\[{(]*,[^\[{(]*", word) for word in words)
    return CommandLine(["train", *(words or ["exp=ppo"]), *([] if several else ["seed=1,2,3"]), "group=NAME"])


def _evaluation(command: str, words: list[str]) -> CommandLine:
    """Convert an evaluation with SheepRL's `checkpoint_path=… env.capture_video=True` to one of `shepherd`.

    The result is `shepherd evaluate CHECKPOINT --video`.
    """
    translated: list[str] = []
    left_out: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "checkpoint_path":
            translated.insert(0, _with_folder(word).partition("=")[2])
        elif key == "env.capture_video":
            translated += ["--video"] if value.lower() == "true" and command == "evaluate" else []
        elif word.startswith(LEFT_OUT):
            left_out.append(word)
        elif re.match(r"[\w.]+=", word) and not Path(word).exists():
            raise UserError(
                f"{word}: an evaluation uses the config of its run and accepts no overrides; see `shepherd {command} "
                "--help`"
            )
        else:
            translated.append(word)
    return CommandLine([command, *translated], left_out=left_out)


def _run_of(words: Collection[str]) -> str:
    """Return the run directory in the word `checkpoint_path=…` of SheepRL's command for model registration.

    All other words are ignored, because the registration reads its settings from the run. Raises UserError if the path
    is not a run directory.
    """
    path = next((word.partition("=")[2] for word in words if word.startswith("checkpoint_path=")), "")
    if not path or not RunDirectory(path).identity.exists():
        raise UserError(
            f"checkpoint_path={path}: must be the directory of a run of shepherd; to register the best checkpoint of "
            "a run, type `shepherd stage register-model RUN`"
        )
    return path


def _with_folder(word: str) -> str:
    """Replace a checkpoint path in SheepRL's form in `key=value` by the checkpoint directory of this project.

    SheepRL's form is `RUN/…/ckpt_8192_0.ckpt`. Raises UserError if the path is not inside a run of this project.
    """
    key, _, path = word.partition("=")
    if not path.endswith(".ckpt"):
        return word
    folder = next((folder for folder in Path(path).parents if RunDirectory(folder).identity.exists()), None)
    if folder is None or Path(path).is_file():
        raise UserError(
            f"{word}: SheepRL's .ckpt files cannot be read; give a checkpoint directory of a run of shepherd, as "
            f"{key}=runs/a/checkpoints/8192"
        )
    from rlcore.store.checkpoint import resolve  # torch

    number = re.search(r"\d+", Path(path).stem)
    return f"{key}={resolve(RunDirectory(folder), number[0] if number else 'latest')}"
