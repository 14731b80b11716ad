"""Surroundings of a sweep flow's trials: the sweep that is meant, its lock, signals, and who trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from flows.config.compose import compose
from flows.process.leases import alone
from flows.process.signals import still_terminable
from flows.report.command_lines import short_path
from flows.runs.listeners import tell
from flows.sweeps.amount import amount, speed_of
from flows.sweeps.deployed import DeployedHands, cancel_with
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder, refuse_password
from flows.sweeps.growing import growing
from flows.sweeps.jobs import Job
from flows.sweeps.local import here
from flows.sweeps.mlflow_parent import show
from flows.sweeps.plan import LATER, SweepPlan, change, plan
from flows.sweeps.refusals import check_plan, default_of, describe_outside, first_config
from flows.sweeps.study import Study
from flows.sweeps.trial import otherwise
from flows.workers.artifacts import show_share
from flows.workers.flow_run import call, naming_failures, on_worker, stamp_of, supervise
from rlcore.config.values import plain, spell
from rlcore.errors import UserError

from prefect import get_run_logger  # isort: skip - the modules above set the environment that it reads
from prefect.client.schemas.objects import FlowRun  # isort: skip
from prefect.context import FlowRunContext  # isort: skip


def new_sweep(overrides: Sequence[str], elsewhere: bool = False) -> tuple[str, SweepFolder]:
    """The sweep that was typed, checked, new or there with the same settings; and the algorithm whose flow it is.

    `elsewhere`: it is trained on other machines, whose devices are not looked for here.
    """
    wanted = plan(overrides)
    refuse_password(wanted)
    config, pace = check_plan(wanted, elsewhere)
    folder = SweepFolder(wanted.config.name)
    runs = Path(config.log_root).absolute() / "sweeps" / folder.name
    if folder.adopt(runs):  # runs that are there are those of the same trials, or nobody's
        _refuse_other(folder, wanted)
    else:
        folder.check_storage(wanted)
    default = default_of(wanted)
    folder.write(dataclasses.replace(wanted, pace=pace, default=default.values, outside=default.outside), runs)
    return config.algo.name, folder


def change_sweep(name: str, overrides: Sequence[str], failed: bool = False) -> tuple[str, SweepFolder]:
    """A sweep that is there, with other settings where they are given, and the algorithm whose flow it is.

    With `failed`, its trials that have failed are to be done again.
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
    """Have the sweep go on in a copy of its study in which the failed trials have only been asked."""
    study, copies = Study(plan, folder.storage(plan), folder.study_name(plan)), folder.copies + 1
    if not study.list_failed():
        raise UserError(f"--failed: no trial of sweep {folder.name} has failed")
    study.copy(folder.study_name(plan, copies))
    folder.note_copies(copies)  # from here on the copy counts, whatever becomes of this process
    study.delete()


@contextmanager
def leading(algo: str, overrides: list[str], name: str, accelerator: str = "") -> Iterator[Sweep]:
    """Drive the sweep that a flow's parameters mean: nobody else may.

    On a worker its trials are flow runs of the pool; at a terminal, in a notebook or a test processes of this machine.
    """
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    log = get_run_logger() if on_worker() else None
    with supervise(log) if log else nullcontext():
        with naming_failures(f"sweep {name or algo}"):
            folder = (
                SweepFolder.existing(name) if name else _find_or_make(algo, overrides, accelerator, context.flow_run)
            )
        with still_terminable(), folder.driving(), _alone(folder):
            sweep = Sweep(folder, folder.read())
            call(f"sweep {folder.name}", folder.name, algo)
            if sweep.pace.notice:
                tell("stage", {"doing": sweep.pace.notice})
            if missing := describe_outside(sweep.plan):
                tell("stage", {"doing": f"trial 0 is {missing}"})
            trials, first = f"trials of sweep {folder.name}", first_config(sweep.plan)
            ended = sum(trial.state.is_finished() for trial in sweep.study.trials)
            tell("stage", {"doing": amount(sweep.plan, sweep.pace, ended, speed_of(first, folder.runs))})
            with (
                show_share(f"sweep-{folder.name}", trials, sweep.plan.size),
                show(folder, plain(first)),
                growing(sweep),
            ):
                if log:
                    sweep.hands = hands = DeployedHands(sweep, "gpu" if accelerator else "default")
                    with cancel_with(context.flow_run.id, hands):
                        yield sweep
                    return
                workers, device = sweep.config.workers, first.fabric.accelerator
                with here(workers, device, folder.workers_log, sweep.review) as sweep.hands:
                    yield sweep


def _alone(folder: SweepFolder) -> AbstractContextManager[None]:
    """The place of the one process on any machine that drives a sweep."""
    return alone(f"sweep-{folder.id}", folder.lease, f"is driving sweep {folder.name}; wait for it")


def _find_or_make(algo: str, overrides: list[str], accelerator: str, flow_run: FlowRun) -> SweepFolder:
    """The sweep that follows from a flow run and its parameters: there already, at a retry say, or made now."""
    typed = list(overrides)
    if not any(override.startswith(("sweep=", "exp=")) for override in typed):
        typed.append(f"sweep={algo}")
    if not any(override.startswith("sweep.name=") for override in typed):
        typed.append(f"sweep.name={algo}_{stamp_of(flow_run)}")  # the same at every attempt
    if accelerator and not any(override.startswith("fabric.accelerator=") for override in typed):
        typed.append(f"fabric.accelerator={accelerator}")
    name, folder = new_sweep(typed, elsewhere=True)
    if name != algo:
        raise UserError(f"algo.name={name}: this is flow sweep-{algo}; run flow sweep-{name}")
    return folder


def start(sweep: Sweep, job: Job) -> None:
    """Begin a job of a sweep, or go on with it; a `UserError` where a folder of it holds another training.

    A study that was lost, and asks again, may mean other trials than the folders that are left.
    """
    for training in job.trainings:
        if not training.run.config.exists():
            continue
        if other := otherwise(training.run, compose(training.overrides)[0], judged=True):
            key, old, new = other
            raise UserError(
                f"{key}={spell(new)}: {short_path(training.run_dir)} was trained with {spell(old)}, so it is not "
                f"{job.label.partition(':')[0]} of this study; move {short_path(training.run_dir.parent)} away, or "
                "choose another sweep.name"
            )
    sweep.hands.start(job)


def _refuse_other(folder: SweepFolder, wanted: SweepPlan) -> None:
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
