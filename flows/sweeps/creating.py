"""Creation and change of sweeps.

This module does not import Prefect. The import creates Prefect's folder, which must not happen if the sweep is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flows.sweeps.folder import SweepFolder, refuse_password
from flows.sweeps.plan import LATER, SweepPlan, change, plan
from flows.sweeps.refusals import check_plan, default_of
from flows.sweeps.study import Study
from rlcore.config.values import plain, spell
from rlcore.errors import UserError


def new_sweep(overrides: Sequence[str], elsewhere: bool = False) -> tuple[str, SweepFolder]:
    """Check and store the sweep that the arguments of `shepherd sweep` define.

    Args:
        overrides: arguments of `shepherd sweep`. If a sweep with this `sweep.name` exists already, its settings must be
            equal.
        elsewhere: True if other machines train the sweep; the devices and free memory of this machine are then not
            checked.

    Returns:
        Name of the algorithm, and the folders of the sweep.
    """
    wanted = plan(overrides)
    refuse_password(wanted)
    config, pace = check_plan(wanted, elsewhere)
    folder = SweepFolder(wanted.config.name)
    runs = Path(config.log_root).absolute() / "sweeps" / folder.name
    if folder.adopt(runs):  # existing runs must belong to the same trials
        _refuse_other(folder, wanted)
    else:
        folder.check_storage(wanted)
    default = default_of(wanted)
    folder.write(dataclasses.replace(wanted, pace=pace, default=default.values, outside=default.outside), runs)
    return config.algo.name, folder


def change_sweep(name: str, overrides: Sequence[str], failed: bool = False) -> tuple[str, SweepFolder]:
    """Change the settings of an existing sweep before it is resumed.

    Args:
        name: name of the sweep.
        overrides: new settings, such as `sweep.trials=40`.
        failed: True resets failed trials, so that they are trained again.

    Returns:
        Name of the algorithm, and the folders of the sweep.
    """
    folder = SweepFolder.existing(name)
    there = folder.read()
    with folder.driving():
        made = dataclasses.replace(there, config=change(there.config, overrides))
        config, pace = check_plan(made)
        folder.write(dataclasses.replace(made, pace=pace), folder.runs)
        if failed:
            _take_up_failed(folder, made)
    return config.algo.name, folder


def _take_up_failed(folder: SweepFolder, plan: SweepPlan) -> None:
    """Replace the sweep's Optuna study by a copy in which failed trials have the state of unfinished trials."""
    study, copies = Study(plan, folder.storage(plan), folder.study_name(plan)), folder.copies + 1
    if not study.list_failed():
        raise UserError(f"--failed: no trial of sweep {folder.name} has failed; remove --failed")
    study.copy(folder.study_name(plan, copies))
    folder.note_copies(copies)  # after this line the copy is used, even if this process is killed
    study.delete()


def _refuse_other(folder: SweepFolder, wanted: SweepPlan) -> None:
    """Raise UserError if `wanted` has other settings than the existing sweep with the same name."""
    there = folder.read()
    before, now = plain(there.config), plain(wanted.config)
    for key in before.keys() - set(LATER):
        if before[key] != now[key] and key not in ("overrides", "space"):
            raise UserError(
                f"sweep.{key}={spell(now[key])}: sweep {folder.name} exists with {key}={spell(before[key])}; choose "
                f"another sweep.name, or resume the existing sweep: {folder.resume_command}"
            )
    if (there.base, there.space) != (wanted.base, wanted.space):
        raise UserError(
            f"sweep.name={folder.name}: a sweep of this name exists with other overrides or another space; choose "
            f"another name, or resume the existing sweep: {folder.resume_command}"
        )
