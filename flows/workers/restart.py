"""Supervisor of a program: starts it again whenever it ends, for example a Prefect worker that was killed.

    python -m flows.workers.restart MODULE [ARGUMENT ...]      runs python -m MODULE in a loop

If the supervisor ends, even by SIGKILL, the program ends, too (rlcore.system.lifeline).
"""

from __future__ import annotations

import sys
import time

from rlcore.system.lifeline import spawn
from rlcore.system.printable import print_safely

SHORTEST, LONGEST = 1.0, 60.0  # seconds between the end of the program and its next start


def pause(lived: float, before: float) -> float:
    """Return the seconds to wait until the program is started again.

    If the program ran for less than a minute, the pause is twice the previous one (from 1 s to 60 s). After a longer
    run, it is 1 s.

    Args:
        lived: seconds for which the program ran.
        before: previous pause, in seconds.

    Returns:
        The pause.
    """
    return SHORTEST if lived >= LONGEST else min(max(SHORTEST, 2 * before), LONGEST)


def main(arguments: list[str]) -> None:
    """Run a program in a loop, with a pause between two runs. This function never returns.

    Args:
        arguments: module of the program, and its arguments.
    """
    seconds = 0.0
    while True:
        began = time.monotonic()
        code = spawn(*arguments).wait()
        seconds = pause(time.monotonic() - began, seconds)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        print_safely(f"{now} {arguments[0]} has ended ({code}) and restarts in {seconds:g} s", flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
