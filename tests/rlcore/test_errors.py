"""Mistakes that are gathered."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from rlcore.errors import Mistakes, UserError

SENTENCE = "algo.lr=-1: must be positive"


class Held:
    """An object of a frame, which fails as environments do that are half made."""

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
def test_a_gathered_mistake_holds_nothing_of_the_frames_it_came_through(fail: Callable[[Held], None]) -> None:
    """An emulator that still lives when Python ends is reported as a leak, forty lines below the sentence."""
    mistakes: Mistakes = Mistakes()
    seen: list[weakref.ref[Held]] = []

    def look() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        fail(held)

    gc.disable()  # frames that are held in a circle are no better: a command's end does not look for those
    try:
        with mistakes.catch():
            look()
        assert seen[0]() is None
    finally:
        gc.enable()
    with pytest.raises(UserError, match="must be positive"):
        mistakes.raise_collected()


def test_a_sentence_cuts_long_values() -> None:
    told = str(UserError(f"env.id={'x' * 100_000}: no such environment"))
    assert len(told) < 400 and "xxx…xxx" in told
    assert told.startswith("env.id=xxx") and told.endswith(" no such environment")
