"""Context in which a sweep flow runs: finds or creates the sweep, locks it, handles signals, chooses the executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from flows.config.compose import compose
from flows.prefect_repairs.leases import hold_lease
from flows.process.signals import stay_terminable
from flows.report.command_lines import short_path
from flows.runs.listeners import emit
from flows.sweeps.amount import amount, speed_of
from flows.sweeps.creating import new_sweep
from flows.sweeps.deployed import WorkPoolExecutor, cancel_with
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.growing import refresh_reports
from flows.sweeps.jobs import Job
from flows.sweeps.local import local_executor
from flows.sweeps.mlflow_parent import update_parent
from flows.sweeps.refusals import describe_outside, first_config
from flows.sweeps.trial import differing_config
from flows.workers.artifacts import show_share
from flows.workers.flow_run import call, name_failed_run, on_worker, stamp_of, supervise
from rlcore.config.values import plain, spell
from rlcore.errors import UserError

from prefect import get_run_logger  # isort: skip - the modules above set the environment that it reads
from prefect.client.schemas.objects import FlowRun  # isort: skip
from prefect.context import FlowRunContext  # isort: skip


@contextmanager
def managed_sweep(algo: str, overrides: list[str], name: str, accelerator: str = "") -> Iterator[Sweep]:
    """Context manager that creates or resumes a sweep, locks it, and prepares the execution of its trials.

    If the flow runs on a Prefect worker, the trials of the sweep are flow runs of the work pool. Otherwise (command
    line, notebook, test) they are processes of this machine.

    Args:
        algo: name of the algorithm.
        overrides: arguments of `shepherd sweep` for a new sweep.
        name: name of the sweep to resume; "" creates a new sweep.
        accelerator: value of `fabric.accelerator` if the overrides do not set it.

    Yields:
        The sweep.
    """
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    log = get_run_logger() if on_worker() else None
    with supervise(log) if log else nullcontext():
        with name_failed_run(f"sweep {name or algo}"):
            folder = (
                SweepFolder.existing(name) if name else _find_or_make(algo, overrides, accelerator, context.flow_run)
            )
        with stay_terminable(), folder.driving(), _alone(folder):
            sweep = Sweep(folder, folder.read())
            call(f"sweep {folder.name}", folder.name, algo)
            if sweep.pace.notice:
                emit("stage", {"doing": sweep.pace.notice})
            if missing := describe_outside(sweep.plan):
                emit("stage", {"doing": f"trial 0 is {missing}"})
            trials, first = f"trials of sweep {folder.name}", first_config(sweep.plan)
            ended = sum(trial.state.is_finished() for trial in sweep.study.trials)
            emit("stage", {"doing": amount(sweep.plan, sweep.pace, ended, speed_of(first, folder.runs))})
            with (
                show_share(f"sweep-{folder.name}", trials, sweep.plan.size),
                update_parent(folder, plain(first)),
                refresh_reports(sweep),
            ):
                if log:
                    sweep.executor = executor = WorkPoolExecutor(sweep, "gpu" if accelerator else "default")
                    with cancel_with(context.flow_run.id, executor):
                        yield sweep
                    return
                workers, device = sweep.config.workers, first.fabric.accelerator
                with local_executor(workers, device, folder.workers_log, sweep.review) as sweep.executor:
                    yield sweep


def _alone(folder: SweepFolder) -> AbstractContextManager[None]:
    """Return a context manager that prevents processes on other machines from running the sweep at the same time."""
    return hold_lease(f"sweep-{folder.id}", folder.lease, f"is running sweep {folder.name}; wait until it ends")


def _find_or_make(algo: str, overrides: list[str], accelerator: str, flow_run: FlowRun) -> SweepFolder:
    """Return the folders of the sweep that belongs to a flow run.

    The first attempt of the flow run creates the sweep; if Prefect retries the flow run, the sweep exists.
    """
    typed = list(overrides)
    if not any(override.startswith(("sweep=", "exp=")) for override in typed):
        typed.append(f"sweep={algo}")
    if not any(override.startswith("sweep.name=") for override in typed):
        typed.append(f"sweep.name={algo}_{stamp_of(flow_run)}")  # the same at every attempt
    if accelerator and not any(override.startswith("fabric.accelerator=") for override in typed):
        typed.append(f"fabric.accelerator={accelerator}")
    name, folder = new_sweep(typed, elsewhere=True)
    if name != algo:
        raise UserError(f"algo.name={name}: cannot be run by the flow sweep-{algo}; run the flow sweep-{name}")
    return folder


def start(sweep: Sweep, job: Job) -> None:
    """Start or resume the runs of a trial.

    Raises UserError if the folder of a run already contains a run with other settings. This happens if the Optuna study
    was lost: the new study may choose other values for a trial than those in the existing folder.
    """
    for training in job.trainings:
        if not training.run.config.exists():
            continue
        if other := differing_config(training.run, compose(training.overrides)[0], judged=True):
            key, old, new = other
            raise UserError(
                f"{key}={spell(new)}: run {short_path(training.run_dir)} was trained with {key}={spell(old)}, so it "
                f"does not belong to {job.label.partition(':')[0]} of this study; move the folder "
                f"{short_path(training.run_dir.parent)} away, or choose another sweep.name"
            )
    sweep.executor.start(job)
