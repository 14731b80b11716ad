"""Mistakes that are gathered."""

from __future__ import annotations

import gc
import weakref

import pytest

from rlcore.errors import Mistakes, UserError


class Held:
    """An object of a frame."""


def test_a_gathered_mistake_holds_nothing_of_the_frames_it_came_through():
    """An emulator that still lives when Python ends is reported as a leak, forty lines below the sentence."""
    mistakes, seen = Mistakes(), []

    def look():
        held = Held()
        seen.append(weakref.ref(held))
        raise UserError("algo.lr=-1: must be positive")

    gc.disable()  # frames that are held in a circle are no better: a command's end does not look for those
    try:
        with mistakes.catch():
            look()
        assert seen[0]() is None
    finally:
        gc.enable()
    with pytest.raises(UserError, match="must be positive"):
        mistakes.tell()
