"""Removal of launchers from a command line.

A launcher is a program that starts a script, such as `torchrun train.py` or Lightning's `fabric run train.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rlcore.errors import UserError

# Launch programs; those of Lightning take options of Fabric.
LAUNCHERS = (
    "lightning run model",
    "fabric run",
    "lightning run",
    "poetry run",
    "python3",
    "python",
)
# Fabric's options -> config keys; "" for options that only training on several machines needs.
FABRIC_OPTIONS = {name: f"fabric.{name}" for name in ("accelerator", "precision", "strategy", "devices", "num_nodes")}
FABRIC_OPTIONS |= dict.fromkeys(("node_rank", "main_address", "main_port"), "")


def without_launcher(typed: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without launchers such as `fabric run`, `torchrun` or `python`.

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


def find_fabric_run_settings() -> list[str] | None:
    """Return the options of Lightning's command `fabric run`, as `key=value` overrides, if it started this process.

    The options are read from the LT_* environment variables that `fabric run` sets for the processes that it starts.
    Returns None if this process was not started by `fabric run`.
    """
    if os.environ.get("LT_CLI_USED", "0") == "0":
        return None
    given = ((key, os.environ.get(f"LT_{name.upper()}", "1")) for name, key in FABRIC_OPTIONS.items() if key)
    return [f"{key}={value}" for key, value in given if value != "1"]
