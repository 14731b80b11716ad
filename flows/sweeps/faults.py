"""Handling of trials that were ended by a machine fault: retried, left unfinished, or counted as failed."""

from __future__ import annotations

from flows.sweeps.jobs import FAULTS, End
from flows.sweeps.study import Study
from rlcore.errors import DiskFault

ATTEMPTS = 3  # attempts of one trial over all drivers; after these the trial itself is assumed to be the cause


class Faults:
    """Machine faults that ended trials of one driver.

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
        """Return a trial to retry alone, or None. Two trials at a time may have needed too much memory."""
        if self.full or not self._again:
            return None
        number = self._again.pop(0)
        self._tried.add(number)
        return number

    def classify(self, number: int, end: End) -> End:
        """Return how a trial has ended: as its job did, or "failed" after `ATTEMPTS` attempts that ended in a fault."""
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
