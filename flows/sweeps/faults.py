"""Handling of trials that a machine fault (such as a full disk or a killed process) has ended.

Such a trial is retried, left unfinished, or counted as failed.
"""

from __future__ import annotations

from flows.sweeps.jobs import FAULTS, End
from flows.sweeps.study import Study
from rlcore.errors import DiskFault

ATTEMPTS = 3  # attempts of one trial, over all resumes of the sweep; then the trial is assumed to cause the fault


class Faults:
    """Collection of the machine faults that ended trials while this process ran the sweep.

    Args:
        study: study of the sweep.
        go_on: command that resumes the sweep; with `--failed` it retries failed trials.
    """

    def __init__(self, study: Study, go_on: str) -> None:
        self._study, self._go_on = study, go_on
        self._again: list[int] = []
        self._tried: set[int] = set()
        self._left: dict[int, End] = {}

    @property
    def full(self) -> bool:
        """True if a trial was ended by a full disk, which would end every other trial as well."""
        return any(end.fault == DiskFault.__name__ for end in self._left.values())

    def again(self) -> int | None:
        """Return the number of a trial to retry while no other trial is running; None if there is none.

        Several trials at a time may have needed too much memory together.
        """
        if self.full or not self._again:
            return None
        number = self._again.pop(0)
        self._tried.add(number)
        return number

    def classify(self, number: int, end: End) -> End:
        """Return the result of a trial whose job has ended.

        It is the result of the job. If `ATTEMPTS` attempts have ended in a machine fault, the trial counts as failed.
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
        """Raise the machine fault of the first unfinished trial, if there is one."""
        for number, end in sorted(self._left.items()):
            raise FAULTS[end.fault](f"trial {number} is unfinished: {end.sentence}")
