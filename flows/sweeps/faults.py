"""Trials that a fault of the machine has ended: which are tried again, which are left unfinished, which have failed."""

from __future__ import annotations

from flows.sweeps.jobs import FAULTS, End
from flows.sweeps.study import Study
from rlcore.errors import DiskFault

ATTEMPTS = 3  # of one trial over all drivers: what is short of memory or killed each time is so by its own doing


class Faults:
    """The trials of one driver that came to no end.

    Args:
        study: of the sweep.
        go_on: the command that takes up failed trials.
    """

    def __init__(self, study: Study, go_on: str) -> None:
        self._study, self._go_on = study, go_on
        self._again: list[int] = []
        self._tried: set[int] = set()
        self._left: dict[int, End] = {}

    @property
    def full(self) -> bool:
        """True where a trial ended by a full disk, by which every other one would end as well."""
        return any(end.fault == DiskFault.__name__ for end in self._left.values())

    def again(self) -> int | None:
        """A trial to be tried once more by itself: two that are trained at once may have wanted too much memory."""
        if self.full or not self._again:
            return None
        number = self._again.pop(0)
        self._tried.add(number)
        return number

    def judge(self, number: int, end: End) -> End:
        """Judge how a trial has ended: as its job did, but for one that never gets through, which has failed."""
        if end.state != "unfinished":
            return end
        if end.fault == DiskFault.__name__:
            self._left[number] = end
            return end
        attempts = self._study.count_fault(number)
        if attempts >= ATTEMPTS:
            return End("failed", f"{end.sentence}; {attempts} attempts: {self._go_on} --failed tries it again")
        if number in self._tried:
            self._left[number] = end
        else:
            self._again.append(number)
        return end

    def tell(self) -> None:
        """Raise what has left trials unfinished, if anything has."""
        for number, end in sorted(self._left.items()):
            raise FAULTS[end.fault](f"trial {number} is unfinished: {end.sentence}")
