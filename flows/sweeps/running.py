"""What is around the trials of a sweep flow: the sweep that is meant, its lock, signals, and who trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flows.process.signals import still_terminable
from flows.sweeps.check import check_plan, first_config
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder, refuse_password
from flows.sweeps.jobs import Job
from flows.sweeps.local import here
from flows.sweeps.settings import LATER, Plan, changed, plan
from rlcore.config.schema import plain, spell
from rlcore.errors import UserError


def new_sweep(overrides: Sequence[str]) -> tuple[str, SweepFolder]:
    """The sweep that was typed, checked, new or there with the same settings; and the algorithm whose flow it is."""
    wanted = plan(overrides)
    refuse_password(wanted)
    config = check_plan(wanted)
    folder = SweepFolder(wanted.config.name)
    if folder.plan_file.exists():
        _refuse_other(folder, wanted)
    folder.write(wanted, Path(config.log_root).absolute() / "sweeps" / folder.name)
    return config.algo.name, folder


def changed_sweep(name: str, overrides: Sequence[str]) -> tuple[str, SweepFolder]:
    """A sweep that is there, with other settings where they are given, and the algorithm whose flow it is."""
    folder = SweepFolder.existing(name)
    there = folder.read()
    with folder.driving():
        made = dataclasses.replace(there, config=changed(there.config, overrides))
        config = check_plan(made)
        folder.write(made, folder.runs)
    return config.algo.name, folder


@contextmanager
def leading(algo: str, overrides: list[str], name: str, accelerator: str = "") -> Iterator[Sweep]:
    """Drive the sweep that a flow's parameters mean: nobody else may."""
    folder = SweepFolder.existing(name)
    with still_terminable(), folder.driving():
        sweep = Sweep(folder, folder.read())
        device = first_config(sweep.plan).fabric.accelerator
        with here(sweep.config.workers, device, folder.workers_log, sweep.review) as sweep.hands:
            yield sweep


def start(sweep: Sweep, job: Job) -> None:
    """Begin a job of a sweep, or go on with it."""
    sweep.hands.start(job)


def _refuse_other(folder: SweepFolder, wanted: Plan) -> None:
    """Refuse settings that are not those of the sweep of this name."""
    there = folder.read()
    before, now = plain(there.config), plain(wanted.config)
    for key in before.keys() - set(LATER):
        if before[key] != now[key] and key not in ("overrides", "space"):
            raise UserError(
                f"sweep.{key}={spell(now[key])}: sweep {folder.name} is there with {spell(before[key])}; choose "
                f"another sweep.name, or go on with it: {folder.resume_command}"
            )
    if (there.base, there.space) != (wanted.base, wanted.space):
        raise UserError(
            f"sweep.name={folder.name}: a sweep is there with other overrides or another space; choose another name, "
            f"or go on with it: {folder.resume_command}"
        )
