"""Programs that start a script, as Lightning's `fabric run` does, and what their options are here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rlcore.errors import UserError

# Words that start a program which starts a script; behind the first two come options of Fabric.
LAUNCHERS = (
    "lightning run model",
    "fabric run",
    "lightning run",
    "poetry run",
    "python3",
    "python",
)
# Fabric's options -> keys here; what only several machines need has none.
FABRIC_OPTIONS = {name: f"fabric.{name}" for name in ("accelerator", "precision", "strategy", "devices", "num_nodes")}
FABRIC_OPTIONS |= dict.fromkeys(("node_rank", "main_address", "main_port"), "")


def without_launcher(typed: Sequence[str]) -> Iterator[str]:
    """The words without what starts a script, whose options come last, as settings."""
    words, settings = [*typed], list[str]()
    while launcher := next((one for one in LAUNCHERS if words[: len(one.split())] == one.split()), None):
        words = words[len(launcher.split()) :]
        while launcher in ("python", "python3") and words and words[0].startswith("-"):
            option = words.pop(0)  # of the interpreter, as -u
            if option in ("-W", "-X") and words:
                words.pop(0)
            if option == "-m":
                break
        while launcher.startswith(("lightning", "fabric")) and words and words[0].startswith("--"):
            option, equals, value = words.pop(0)[2:].replace("-", "_", 1).partition("=")
            if option not in FABRIC_OPTIONS:
                raise UserError(f"--{option}: not known behind `{launcher}`; known are {', '.join(FABRIC_OPTIONS)}")
            value = value if equals else words.pop(0) if words else ""
            settings += [f"{key}={value}"] if (key := FABRIC_OPTIONS[option]) else []
    yield from words
    yield from settings


def find_fabric_run_settings() -> list[str] | None:
    """The settings that `fabric run` was given which has started this process; None where none has.

    It starts a script once for each device and sets LT_* variables, which Fabric obeys.
    """
    if os.environ.get("LT_CLI_USED", "0") == "0":
        return None
    asked = ((key, os.environ.get(f"LT_{name.upper()}", "1")) for name, key in FABRIC_OPTIONS.items() if key)
    return [f"{key}={value}" for key, value in asked if value != "1"]
