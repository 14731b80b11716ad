"""What users of SheepRL, Hydra and `fabric run` type, answered with what to type here."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rlcore.errors import UserError

# Hydra's options, each with its short form and whether a value follows -> what is typed here. {train} is the command
# that was meant, {config} the same that prints the config, {value} what followed the option.
HYDRA_OPTIONS = {
    ("--cfg", "-c", True): "`{config}` prints the config",
    ("--resolve", "", False): "`{config}` prints the config resolved",
    ("--package", "-p", True): "`{config}` prints the config",
    ("--multirun", "-m", False): "several values train a group of runs: `{group}`",
    ("--config-dir", "-cd", True): "`SHEPHERD_SEARCH_PATH={value} {train}` adds a folder of config files",
    ("--config-path", "-cp", True): "`SHEPHERD_SEARCH_PATH={value} {train}` adds a folder of config files",
    ("--config-name", "-cn", True): "a preset is named by exp=NAME: `{train}`",
    ("--run", "-r", False): "`{train}` runs",
    ("--info", "-i", False): "`shepherd train -h` lists presets and keys",
    ("--hydra-help", "", False): "`shepherd train -h` lists presets and keys",
    ("--experimental-rerun", "", True): "`shepherd resume RUN` goes on with a run",
}
FABRIC_RUN = ("accelerator", "precision", "strategy", "devices", "num_nodes")


def refuse_other_commands(arguments: Sequence[str]) -> None:
    """Refuse a command line of another program with a `UserError` that names the command to type here."""
    command = arguments[0]
    typed = [word for word in arguments if re.match(r"~|[^-][^=]*=", word) and not Path(word).exists()]
    _refuse_fabric_run(command, typed)
    if command in ("train", "config") and (ours := [word for word in typed if re.match(r"sweep[.=]", word)]):
        raise UserError(f"{ours[0]}: of a search over many runs; type `{_line('sweep', typed)}`")
    if command in ("evaluate", "enjoy") and any(re.match(r"[\w.]+=", word) for word in typed):
        _refuse_evaluation(command, arguments[1:], typed)
    for (long, short, valued), here in HYDRA_OPTIONS.items():
        for at, word in enumerate(arguments):
            option, _, value = word.partition("=")
            if option not in (long, short) or not option:
                continue
            value = value or (arguments[at + 1] if valued and at + 1 < len(arguments) else "")
            words = [one for one in typed if one not in (word, value)]
            meant = {"train": _line("train", words), "config": _line("config", words), "group": _group(words)}
            raise UserError(f"{option}: this is Hydra's option; here {here.format(**meant, value=shlex.quote(value))}")
    if command.startswith("checkpoint_path="):
        _refuse_evaluation("evaluate", arguments, typed)
    if command in typed:
        raise UserError(f"{command}: a command comes first; type `{_line('train', typed)}`")


def _line(command: str, words: Sequence[str]) -> str:
    return shlex.join(["shepherd", command, *(words or ["exp=ppo"])])


def _group(words: Sequence[str]) -> str:
    """The command that trains a run for each of the values; for each of three seeds where no key has several."""
    several = any(re.fullmatch(r"[^\[{(]*,[^\[{(]*", word) for word in words)
    named = any(word.startswith("group=") for word in words)
    return _line(
        "train", [*(words or ["exp=ppo"]), *([] if several else ["seed=1,2,3"]), *([] if named else ["group=NAME"])]
    )


def _refuse_evaluation(command: str, words: Sequence[str], typed: Sequence[str]) -> None:
    """SheepRL's `checkpoint_path=… env.capture_video=True` as a folder and options."""
    sources = [word.partition("=")[2] for word in typed if word.startswith("checkpoint_path=")]
    sources += [word for word in words if word not in typed and not word.startswith("-")]
    source, why = (sources or ["RUN"])[0], ""
    if source.endswith(".ckpt"):
        source, why = "RUN", ", where RUN is the folder of a run made here (SheepRL's .ckpt files cannot be read)"
    video = command == "evaluate" and "env.capture_video=true" in map(str.lower, typed)
    line = shlex.join(["shepherd", command, source, *(["--video"] if video else [])])
    raise UserError(f"{typed[0]}: `shepherd {command}` takes a folder and options; type `{line}`{why}")


def _refuse_fabric_run(command: str, typed: Sequence[str]) -> None:
    """Lightning's `fabric run` starts a script once for each device and sets LT_* variables, which Fabric obeys."""
    if os.environ.get("LT_CLI_USED", "0") == "0":
        return
    asked = ((name, os.environ.get(f"LT_{name.upper()}", "1")) for name in FABRIC_RUN)
    settings = [f"fabric.{name}={value}" for name, value in asked if value != "1"]
    line = shlex.join(["shepherd", command if command not in typed else "train", *typed, *settings])
    raise UserError(f"LT_CLI_USED is set, as `fabric run` does: shepherd starts its processes itself; type `{line}`")
