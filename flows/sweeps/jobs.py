"""What is done by workers: jobs, how they end, and who does them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from flows.sweeps.trial import Training

DEATHS = 3  # of workers that one job survives: what kills every one of them is the job


class End(NamedTuple):
    """How a job ended: "over", "pruned", "failed" (with the sentence) or "interrupted"."""

    state: str
    sentence: str = ""


class Job:
    """Trainings that one worker does one after another, as a sweep's flow hands them out.

    Args:
        label: for people: "trial 7: algo.gamma=0.9".
        trainings: its runs.
        number: of the trial; None of a run that is no trial.
    """

    def __init__(self, label: str, trainings: Sequence[Training], number: int | None = None) -> None:
        self.label, self.trainings, self.number = label, list(trainings), number


class Hands(Protocol):
    """Who does the jobs: processes of this machine, or the workers of a pool."""

    @property
    def free(self) -> bool:
        """Whether one more can be started."""
        ...

    @property
    def busy(self) -> bool:
        """Whether there is one to wait for."""
        ...

    def start(self, job: Job) -> None:
        """Begin a job, or go on with it."""
        ...

    def wait(self) -> tuple[Job, End]:
        """The next job that ends, and how."""
        ...
