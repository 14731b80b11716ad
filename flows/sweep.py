"""Prefect flows that run a sweep (hyperparameter search), one flow for each algorithm.

Prefect deployments refer to a flow as `sweep_<algo>`, for example `sweep_ppo`. The command line calls `run_sweep`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from flows.config.compose import compose
from flows.prefect_repairs.leases import hold_lease
from flows.process.signals import stay_terminable
from flows.report.command_lines import short_path
from flows.report.sentences import duration
from flows.runs.listeners import emit
from flows.sweeps.creating import describe_outside, first_config, new_sweep
from flows.sweeps.deployed import WorkPoolExecutor, cancel_with
from flows.sweeps.driving import Sweep, trials
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import Job, differing_config
from flows.sweeps.local import local_executor
from flows.sweeps.mlflow_parent import update_parent
from flows.sweeps.plan import SweepPlan, TrialIntervals
from flows.sweeps.report import refresh_reports, report
from flows.sweeps.winner import best_preset, confirm, verdict
from flows.tasks import VERSION
from flows.workers.artifacts import show_share
from flows.workers.flow_run import (
    call,
    name_failed_run,
    on_worker,
    shorten_failures,
    stamp_of,
    supervise,
    terminable_flow,
)
from flows.workers.local_api import prefect_api
from flows.workers.pools import find_flow
from rlcore.config.run import RunConfig
from rlcore.config.values import plain, spell
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

from prefect import Flow, flow, get_run_logger  # isort: skip - the modules above set the environment that it reads
from prefect.client.schemas.objects import FlowRun  # isort: skip
from prefect.context import FlowRunContext  # isort: skip

SEEN = 20  # maximal number of runs from which the speed is estimated


@functools.cache
def sweep_flow(algo: str) -> Flow[..., Any]:
    """Return the Prefect flow `sweep-<algo>`, which searches for good hyperparameters of an algorithm."""

    @flow(name=f"sweep-{algo}", version=VERSION, persist_result=False)
    @shorten_failures
    def sweep(overrides: list[str] = [], name: str = "", accelerator: str = "") -> Any:  # noqa: B006
        """Search a space of configurations, then train the best one on new seeds to confirm that it is better.

        Args:
            overrides: arguments of `shepherd sweep`, one entry each: `sweep.trials=20`, `env.id=Acrobot-v1`,
                `algo.gamma=interval(0.9,1)`. Without `sweep=` or `exp=`, the algorithm's sweep preset is used.
            name: name of an existing sweep to resume; empty for a new sweep.
            accelerator: value of `fabric.accelerator` if the overrides do not set it. The deployment sets it to the
                accelerator of its work pool; usually it does not need to be changed.

        Returns:
            A mapping with the keys name (of the sweep), best (trial), confirmed (comparison of the best trial with the
            default configuration on new seeds) and result (a sentence).
        """
        with managed_sweep(algo, overrides, name, accelerator) as sweep:  # plan, lock, study, signals, workers
            for trial in trials(sweep):  # waits for a free worker, and in batch mode for the end of the previous batch
                start(sweep, trial)
            best_preset(sweep)
            for run in confirm(sweep):  # the winner and the default configuration, both on new seeds
                start(sweep, run)
            verdict(sweep)  # registers the winner as challenger if it is better
            return report(sweep)

    return sweep


def __getattr__(name: str) -> Flow[..., Any]:
    """Return the flow `sweep_<algo>` of this module, which the entrypoint of a Prefect deployment names.

    The algorithm may be defined in a plugin.
    """
    return find_flow(name, "sweep", sweep_flow)


def run_sweep(algo: str, folder: SweepFolder) -> dict[str, Any]:
    """Run the Prefect flow of a new or unfinished sweep in this process, and return the result of the flow."""
    with terminable_flow(), prefect_api():
        return sweep_flow(algo)(name=folder.name)


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
            flow_run = context.flow_run
            folder = SweepFolder.existing(name) if name else _find_or_make(algo, overrides, accelerator, flow_run)
        other = f"is running sweep {folder.name}; wait until it ends"  # on another machine
        with stay_terminable(), folder.driving(), hold_lease(f"sweep-{folder.id}", folder.lease, other):
            sweep = Sweep(folder, folder.read())
            call(f"sweep {folder.name}", folder.name, algo)
            if sweep.pace.notice:
                emit("stage", {"doing": sweep.pace.notice})
            if missing := describe_outside(sweep.plan):
                emit("stage", {"doing": f"trial 0 is {missing}"})
            first = first_config(sweep.plan)
            ended = sum(trial.state.is_finished() for trial in sweep.study.trials)
            emit("stage", {"doing": amount(sweep.plan, sweep.pace, ended, speed_of(first, folder.runs))})
            with (
                show_share(f"sweep-{folder.name}", f"trials of sweep {folder.name}", sweep.plan.size),
                update_parent(folder, plain(first)),
                refresh_reports(sweep),
            ):
                if log:
                    sweep.executor = executor = WorkPoolExecutor(sweep, "gpu" if accelerator else "default")
                    with cancel_with(flow_run.id, executor):
                        yield sweep
                    return
                workers, device = sweep.config.workers, first.fabric.accelerator
                with local_executor(workers, device, folder.workers_log, sweep.review) as sweep.executor:
                    yield sweep


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
        if other := differing_config(training.run, compose(training.overrides)[0], evaluation=True):
            key, old, new = other
            raise UserError(
                f"{key}={spell(new)}: run {short_path(training.run_dir)} was trained with {key}={spell(old)}, so it "
                f"does not belong to {job.label.partition(':')[0]} of this study; move the folder "
                f"{short_path(training.run_dir.parent)} away, or choose another sweep.name"
            )
    sweep.executor.start(job)


def amount(plan: SweepPlan, pace: TrialIntervals, ended: int = 0, speed: float | None = None) -> str:
    """Describe the remaining work of a sweep: trials, confirmation runs, policy steps and estimated time.

    Args:
        plan: plan of the sweep.
        pace: evaluation intervals; only `budget` and `done` are used, which give the largest length of a run.
        ended: number of trials that have already ended.
        speed: expected policy steps per second of one run; None if unknown.

    Returns:
        A sentence without a full stop.
    """
    settings = plan.config
    trials, fresh = max(0, plan.size - ended), 2 * settings.confirm_seeds
    runs = trials * settings.seeds + fresh
    each = f" on {settings.seeds} seeds each" if settings.seeds > 1 else ""
    parts = [f"{trials} {'trial' if trials == 1 else 'trials'}{each}"]
    parts += [f"{fresh} confirmation runs"] if fresh else []
    steps = pace.budget - pace.done
    further = f" after the {pace.done:,} of the extended run" if pace.done else ""
    which = f"{runs} {'run' if runs == 1 else 'runs'} of {steps:,} policy steps{further}"
    amount = f"{' + '.join(parts)}: {which}, at most {runs * steps:,} policy steps in total"
    if not speed:
        return amount
    seconds = runs * steps / speed / settings.workers
    unit = "h:min:s" if round(seconds) >= 3600 else "min:s"
    at_once = f"{settings.workers} {'run' if settings.workers == 1 else 'runs'} at a time"
    return (
        f"{amount}; estimated training time {duration(seconds)} ({unit}) with {at_once} at {speed:,.0f} policy steps/s "
        "each (median of earlier runs), not including evaluations and startup"
    )


def speed_of(config: RunConfig, trials: Path) -> float | None:
    """Return the median speed of earlier runs in policy steps per second, or None if there are no such runs.

    The runs of the sweep in the folder `trials` are used. If there are none, other runs of the algorithm on the
    environment of `config`, the config of a trial, are used.
    """
    own = list(islice(RunDirectory.below(trials), SEEN))
    others = RunDirectory.below(Path(config.log_root) / config.algo.name / config.env.id)
    speeds = [speed for run in own or islice(others, SEEN) if (speed := run.read_summary().get("policy_steps_per_s"))]
    return median(speeds) if speeds else None
