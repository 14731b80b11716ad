"""`shepherd sweep`: find good hyperparameters; go on with a sweep; how far one is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.process.exits import continued_with
from flows.workers.servers import check_servers

if TYPE_CHECKING:
    from flows.sweeps.folder import SweepFolder


def sweep(overrides: Sequence[str]) -> None:
    """Make a sweep of what was typed, and drive it to its end."""
    check_servers()
    from flows.sweeps.running import new_sweep  # Prefect

    _drive(*new_sweep(overrides))


def resume(name: str, overrides: Sequence[str]) -> None:
    """Go on with a sweep."""
    check_servers()
    from flows.sweeps.running import changed_sweep  # Prefect

    _drive(*changed_sweep(name, overrides))


def status(name: str, as_json: bool = False) -> str:
    """How far a sweep is, as a table or as JSON."""
    from flows.sweeps.folder import SweepFolder
    from flows.sweeps.report import status

    found = status(SweepFolder.existing(name))
    return json.dumps(found, indent=2)


def _drive(algo: str, folder: SweepFolder) -> None:
    from flows.sweep import run_sweep  # Prefect

    with continued_with(folder.resume_command):
        print(run_sweep(algo, folder)["result"])
