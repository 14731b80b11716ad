"""Handling of trials that were ended by a machine fault, such as a full disk or a killed process.

A trial with a machine fault is retried, left unfinished, or counted as failed.
"""

from __future__ import annotations

from flows.sweeps.jobs import FAULTS, End
from flows.sweeps.study import Study
from rlcore.errors import DiskFault

ATTEMPTS = 3  # attempts of one trial, over all resumes of the sweep; then the trial is assumed to cause the fault


class Faults:
    """Collection of machine faults (full disk, out of memory, killed process) that ended trials of a sweep.

    Only faults that occur while this process runs the sweep are collected.

    Args:
        study: Optuna study of the sweep.
        go_on: command that resumes the sweep, for error messages.
    """

    def __init__(self, study: Study, go_on: str) -> None:
        self._study, self._go_on = study, go_on
        self._again: list[int] = []
        self._tried: set[int] = set()
        self._left: dict[int, End] = {}

    @property
    def full(self) -> bool:
        """True if a full disk has ended a trial. No further trial is started then, because it would fail as well."""
        return any(end.fault == DiskFault.__name__ for end in self._left.values())

    def again(self) -> int | None:
        """Return the number of the next trial to retry after a machine fault; None if there is none.

        Call this only while no trial is running. The retried trial can then use all memory of the machine, which helps
        if several trials together used too much memory.
        """
        if self.full or not self._again:
            return None
        number = self._again.pop(0)
        self._tried.add(number)
        return number

    def classify(self, number: int, end: End) -> End:
        """Return the result to record for a trial, and remember the trial if a machine fault has ended it.

        The returned result is `end`, with one exception: if a machine fault has ended `ATTEMPTS` attempts of the trial,
        the trial counts as failed.

        Args:
            number: number of the trial.
            end: result of the trial's job.

        Returns:
            The result to record.
        """
        if end.state != "unfinished":
            return end
        if end.fault == DiskFault.__name__:
            self._left[number] = end
            return end
        attempts = self._study.count_fault(number)
        if attempts >= ATTEMPTS:
            return End("failed", f"{end.sentence}; gave up after {attempts} attempts; retry: {self._go_on} --failed")
        if number in self._tried:
            self._left[number] = end
        else:
            self._again.append(number)
        return end

    def raise_collected(self) -> None:
        """Raise the machine fault of the unfinished trial with the lowest number; do nothing if there is none."""
        for number, end in sorted(self._left.items()):
            raise FAULTS[end.fault](f"trial {number} is unfinished: {end.sentence}")
