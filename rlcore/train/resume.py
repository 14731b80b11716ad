"""The checkpoint that a session goes on from: found, held against the run as it is now, read with care."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.config.groups import RunConfig
from rlcore.config.schema import spell
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.fingerprint import differences, may_extend

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Begun:
    """A verified checkpoint and what it holds.

    Attributes:
        path: its directory.
        learning: what the next step depends on.
        bookkeeping: everything else.
        own: it is of this run, and not one that the config names.
    """

    path: Path
    learning: dict[str, Any]
    bookkeeping: dict[str, Any]
    own: bool

    @staticmethod
    def find(run: RunDirectory, resume_from: str | None) -> Begun | None:
        """The newest good checkpoint of a run, else the one that its config names, else None.

        Args:
            run: whose.
            resume_from: what the config names.

        Returns:
            What the session goes on from.

        Raises:
            UserError: there are checkpoints and none is good: a run does not begin anew behind its user's back.
        """
        newest = checkpoint.load_newest(run.checkpoints)
        if newest is not None:
            return Begun(*newest, own=True)
        there = [path.name for path in checkpoint.newest_first(run.checkpoints)]
        if there:
            raise UserError(
                f"{run.path}: every checkpoint is damaged ({', '.join(there)}; {run.log} says how); "
                "remove its folder `checkpoints` to train from the beginning"
            )
        return Begun(Path(resume_from), *checkpoint.load(Path(resume_from)), own=False) if resume_from else None

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What it was trained with."""
        with self.reading():
            return {half: dict(self.bookkeeping["fingerprint"][half]) for half in ("learning", "machine")}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tell what cannot be made sense of, whole as it may be, in a sentence.

        Yields:
            Nothing.

        Raises:
            UserError: names the files.
        """
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"checkpoint {self.path}: learning/state.json or bookkeeping/state.json holds no state of this run "
                f"({type(error).__name__}: {str(error)[:200]})"
            ) from error

    def check(self, now: Mapping[str, Any], config: RunConfig) -> None:
        """Refuse to go on with what would learn something else; say what may change the bits.

        Args:
            now: the fingerprint of this process.
            config: the run's.

        Raises:
            UserError: names the key, both values and the way to start anew.
        """
        extensible = may_extend(config, now["learning"]["tier"])
        for key, before, after in differences(self.fingerprint["learning"], now["learning"]):
            name = key.removeprefix("config.").removeprefix("boundary.")
            if name == "init_from" or (extensible and name == "algo.total_steps"):
                continue
            raise UserError(
                f"{name}={spell(after)}: {self.path} was trained with {spell(before)}; set it back, "
                f"or start a new run from its weights with init_from={self.path}"
            )
        for key, before, after in differences(self.fingerprint["machine"], now["machine"]):
            bits = (
                "to the same bits unless what learns has changed"
                if key.startswith("code.")
                else "but not to the same bits"
            )
            log.warning("%s is %s, was %s: the run goes on, %s", key, after, before, bits)
