"""The two ways things go wrong: a mistake of the user (exit 2) and a failure of the run (exit 1)."""

from __future__ import annotations

from rlcore.system.secrets import redacted


class Sentence(Exception):
    """An error that is told in one sentence, without the passwords that a quoted address may hold."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class UserError(Sentence):
    """A mistake of the user, told in one sentence that names the key, the value and the fix. Exit code 2."""


class RunError(Sentence):
    """A run that cannot go on (a faulty environment, a NaN, a full disk), told in one sentence. Exit code 1."""


class DiskFault(RunError):
    """A disk that does not take what is written to it: full, read-only, broken. It may pass by itself."""


class EnvironmentFault(RunError):
    """An environment that raised, died, hung or returned what it must not; names env index, step and key."""


class EnvironmentLost(EnvironmentFault):
    """An environment's process died or hung: unlike other faults this may pass, so a run may try again by itself."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, "" where it has none."""
    return (str(error).strip().splitlines() or [""])[0]
