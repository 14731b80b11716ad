"""Jobs of sweeps and groups, the results of jobs, and the interface of executors, which train jobs.

A job is a trial of a sweep with one run per seed, or one run of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flows.sweeps.trial import TrialRun
from rlcore.errors import DiskFault, MachineFault, OutOfMemory, ProcessKilled, machine_fault

FAULTS: dict[str, type[MachineFault]] = {kind.__name__: kind for kind in (DiskFault, OutOfMemory, ProcessKilled)}
DEATHS = 3  # a job whose workers die this often is not tried again, because the job is probably the cause


class End(NamedTuple):
    """Result of a job (the runs of a trial, or one run of a group): how it ended, and why.

    Attributes:
        state: "over" (completed), "pruned", "failed", "interrupted", or "unfinished" (ended by a machine fault).
        sentence: the reason, if the job failed or is unfinished.
        fault: name of the machine fault, a key of `FAULTS`, if the job is unfinished.
    """

    state: str
    sentence: str = ""
    fault: str = ""


def end_by(error: Exception) -> End:
    """Return the result of a job that raised this exception: "unfinished" after a machine fault, otherwise "failed"."""
    fault = machine_fault(error)
    sentence = str(fault or error) or type(error).__name__
    return End("unfinished", sentence, type(fault).__name__) if fault else End("failed", sentence)


class Job:
    """Unit of work of a sweep or group: the runs of a trial, or one run of a group.

    One worker trains the runs of a job, one after another.

    Args:
        label: name in messages, such as "trial 7: algo.gamma=0.9".
        trainings: the runs.
        number: number of the trial; None if the job is not a trial.
    """

    def __init__(self, label: str, trainings: Sequence[TrialRun], number: int | None = None) -> None:
        self.label, self.trainings, self.number = label, list(trainings), number


class Executor(Protocol):
    """Interface of executors, which train jobs: on worker processes of this machine, or on a Prefect work pool."""

    @property
    def free(self) -> bool:
        """True if a worker is free, so that another job can be started."""
        ...

    @property
    def busy(self) -> bool:
        """True if a job was started that `wait` has not returned yet."""
        ...

    def start(self, job: Job) -> None:
        """Start a job, or resume it if some of its runs were trained before."""
        ...

    def wait(self) -> tuple[Job, End]:
        """Wait until a job ends; return the job and its result."""
        ...
