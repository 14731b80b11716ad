"""Messages about long waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flows.runs.listeners import SLOW, announce, subscribe


class Alarm:
    """Timer without a clock: `ring` is what a timer does after its seconds, unless it was cancelled before."""

    def __init__(self, seconds: float, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        assert seconds == SLOW
        self.function, self.arguments, self.state = function, arguments, "new"

    def start(self) -> None:
        self.state = "running"

    def cancel(self) -> None:
        self.state = "cancelled"

    def join(self) -> None:
        assert self.state == "cancelled"

    def ring(self) -> None:
        if self.state == "running":
            self.function(*self.arguments)


@pytest.mark.parametrize(("slow", "said"), [(True, ["importing Prefect ..."]), (False, [])])
def test_announce_emits_message_only_during_long_wait(slow: bool, said: list[str]) -> None:
    alarms, messages = list[Alarm](), list[str]()

    def timer(*arguments: Any) -> Any:
        alarms.append(Alarm(*arguments))
        return alarms[-1]

    with subscribe(lambda kind, facts: messages.append(facts["doing"]) if kind == "stage" else None):
        with announce("importing Prefect", timer):
            if slow:
                alarms[0].ring()
        alarms[0].ring()  # after the wait
    assert messages == said


def test_announce_ends_its_timer_after_an_error() -> None:
    alarms = list[Alarm]()

    def timer(*arguments: Any) -> Any:
        alarms.append(Alarm(*arguments))
        return alarms[-1]

    with pytest.raises(ValueError, match="broken"), announce("importing Prefect", timer):
        raise ValueError("broken")
    assert alarms[0].state == "cancelled"
