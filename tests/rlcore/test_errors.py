"""Collected mistakes, and messages of errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from rlcore.errors import Mistakes, UserError

SENTENCE = "algo.lr=-1: must be positive"


class Held:
    """Object in a frame that fails, like an environment whose constructor raises."""

    def fail(self) -> None:
        raise ValueError


def raise_plainly(held: Held) -> None:
    raise UserError(SENTENCE)


def raise_from_a_failure(held: Held) -> None:
    try:
        held.fail()
    except ValueError as error:
        raise UserError(SENTENCE) from error


def raise_in_place_of_a_failure(held: Held) -> None:
    try:
        held.fail()
    except ValueError:
        raise UserError(SENTENCE) from None


@pytest.mark.parametrize("fail", [raise_plainly, raise_from_a_failure, raise_in_place_of_a_failure])
def test_mistakes_catch_keeps_no_reference_to_frames(fail: Callable[[Held], None]) -> None:
    """An emulator that is still referenced when Python ends prints a long leak report after the error."""
    mistakes: Mistakes = Mistakes()
    seen: list[weakref.ref[Held]] = []

    def fail_in_frame() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        fail(held)

    gc.disable()  # reference cycles must not hold frames either: they are not collected when Python ends
    try:
        with mistakes.catch():
            fail_in_frame()
        assert seen[0]() is None
    finally:
        gc.enable()
    with pytest.raises(UserError, match="must be positive"):
        mistakes.raise_collected()


def test_user_error_shortens_long_values() -> None:
    message = str(UserError(f"env.id={'x' * 100_000}: no such environment"))
    assert len(message) < 400 and "xxx…xxx" in message
    assert message.startswith("env.id=xxx") and message.endswith(" no such environment")
