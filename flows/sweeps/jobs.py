"""Jobs, how they end, and who does them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flows.sweeps.trial import TrialRun
from rlcore.errors import DiskFault, Killed, MachineFault, OutOfMemory, machine_fault

FAULTS: dict[str, type[MachineFault]] = {kind.__name__: kind for kind in (DiskFault, OutOfMemory, Killed)}
DEATHS = 3  # of workers that one job survives: what kills every one of them is the job


class End(NamedTuple):
    """End of a job: "over", "pruned", "failed", "interrupted", or "unfinished" by a fault of the machine.

    Of one that failed or is unfinished there is a sentence, and of the latter the fault, a name of `FAULTS`.
    """

    state: str
    sentence: str = ""
    fault: str = ""


def end_by(error: Exception) -> End:
    """End of a job that an exception has ended."""
    fault = machine_fault(error)
    sentence = str(fault or error) or type(error).__name__
    return End("unfinished", sentence, type(fault).__name__) if fault else End("failed", sentence)


class Job:
    """Trainings that one worker does one after another, as a sweep's flow hands them out.

    Args:
        label: for people: "trial 7: algo.gamma=0.9".
        trainings: its runs.
        number: of the trial; None of a run that is no trial.
    """

    def __init__(self, label: str, trainings: Sequence[TrialRun], number: int | None = None) -> None:
        self.label, self.trainings, self.number = label, list(trainings), number


class Hands(Protocol):
    """Workers who do the jobs: processes of this machine, or the workers of a pool."""

    @property
    def free(self) -> bool:
        """True where one more can be started."""
        ...

    @property
    def busy(self) -> bool:
        """True where there is a job to wait for."""
        ...

    def start(self, job: Job) -> None:
        """Begin a job, or go on with it."""
        ...

    def wait(self) -> tuple[Job, End]:
        """The next job that ends, and how."""
        ...
