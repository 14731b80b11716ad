"""Commands `shepherd sweep`, `shepherd sweep resume` and `shepherd sweep status`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flows.cli.train_command import without_tracebacks
from flows.process.exits import name_continuation
from flows.report.command_lines import short_path
from flows.report.sentences import describe
from flows.runs.listeners import announce, subscribe
from flows.runs.warm import warm_trainers
from flows.sweeps import WORKER
from flows.sweeps.plan import SweepConfig, presets
from flows.tracking.view_commands import view_commands
from flows.workers.local_api import prefect_api_soon
from flows.workers.servers import check_servers
from rlcore.config.schema import arguments
from rlcore.config.values import plain, spell
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import print_safely

USAGE = """\
usage: shepherd sweep [sweep=PRESET] [sweep.KEY=VALUE ...] [key=value ...]
       shepherd sweep status NAME [--json]
       shepherd sweep resume NAME [--failed] [sweep.trials=N ...]

Search for good hyperparameters, then train the best and the default configuration on new seeds.

  shepherd sweep sweep=ppo_cartpole sweep.name=first sweep.trials=20 sweep.workers=2
  shepherd sweep exp=ppo env.id=Acrobot-v1 'algo.optimizer.lr=tag(log,interval(1e-5,1e-2))' sweep.budget=65536
"""

if TYPE_CHECKING:
    from flows.sweeps.folder import SweepFolder


def sweep(overrides: Sequence[str]) -> None:
    """Create a sweep (a hyperparameter search) from overrides and run it until it ends."""
    check_servers()
    with _soon():
        with _checking():
            from flows.sweeps.creating import new_sweep  # Optuna

            algo, folder = new_sweep(overrides)
        _drive(algo, folder)


def resume(name: str, overrides: Sequence[str], failed: bool = False) -> None:
    """Resume the sweep `name` after changing the settings in `overrides`; with `failed`, repeat failed trials, too."""
    check_servers()
    with _soon():
        with _checking():
            from flows.sweeps.creating import change_sweep  # Optuna

            algo, folder = change_sweep(name, overrides, failed)
        _drive(algo, folder)


@contextmanager
def _soon() -> Iterator[None]:
    """Context manager that starts Prefect's API and the trainers' fork server in the background.

    Their imports take seconds; meanwhile this process checks the settings of the sweep.
    """
    with prefect_api_soon(), warm_trainers(WORKER):
        yield


@contextmanager
def _checking() -> Iterator[None]:
    """Context manager that prints what is waited for if checking the settings takes long."""

    def show(kind: str, facts: dict[str, Any]) -> None:
        print_safely(describe(kind, facts) or "", file=sys.stderr)

    with subscribe(show), announce("importing Optuna and checking the settings"):
        yield


def status(name: str, as_json: bool = False) -> str | None:
    """Print the state of a sweep as a table; with `as_json`, return it as JSON instead.

    If no process is running the sweep, the sweep's HTML page is updated.
    """
    from flows.report.terminal import show  # rich
    from flows.sweeps.folder import SweepFolder  # Hydra
    from flows.sweeps.report import refresh_page  # Prefect
    from flows.sweeps.status import status, status_table

    folder = SweepFolder.existing(name)
    current = status(folder)
    refresh_page(folder, current)
    if as_json:
        return json.dumps(current, indent=2)
    show(status_table(current))
    return None


def sweep_help() -> str:
    """Return the text of `shepherd sweep -h`."""
    lines = [USAGE, f"presets (sweep=)\n  {', '.join(presets())}\n", "keys"]
    for argument in arguments(SweepConfig, "sweep."):
        value = spell(plain(argument.default))
        lines += [f"  {argument.key} = {value or repr('')}", f"      {argument.help}. Allowed: {argument.allowed}"]
    return "\n".join(lines)


def _drive(algo: str, folder: SweepFolder) -> None:
    """Run the Prefect flow of a new or resumed sweep until it ends, show its progress, and print its results."""
    from flows.cli.progress import show_jobs  # rich
    from flows.report.terminal import show
    from flows.sweep import run_sweep  # Prefect
    from flows.sweeps.status import ENDED, status, status_table
    from flows.sweeps.winner import train_command

    current = status(folder)
    ended = sum(trial["state"] in ENDED for trial in current["trials"])
    progress = f" · {ended} of {current['wanted']} trials have ended" if current["trials"] else ""
    print_safely(f"sweep {folder.name} · {short_path(folder.runs)}{progress}", file=sys.stderr)
    with name_continuation(folder.resume_command):
        best = current["best"] and current["best"]["value"]
        with show_jobs("trials", current["wanted"], ended, best), without_tracebacks():
            run_sweep(algo, folder)
        current = status(folder)
        show(status_table(current), "")
        if current["best"]:
            show(f"report    {short_path(folder.report)}", f"train it  {train_command(folder)}")
        for command in view_commands(RunDirectory.below(folder.runs)):
            show(f"curves    {command}")
