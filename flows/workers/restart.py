"""Start a program again whenever it ends: a worker that dies comes back by itself.

    python -m flows.workers.restart MODULE [ARGUMENT ...]      as python -m MODULE, again and again

However this process ends, the program ends with it (rlcore.system.lifeline).
"""

from __future__ import annotations

import sys
import time

from rlcore.system.lifeline import spawn
from rlcore.system.printable import print_safely

SHORTEST, LONGEST = 1.0, 60.0  # seconds between an end and the next start


def pause(lived: float, before: float) -> float:
    """Seconds to wait before the next start: twice as many as before after each short life, few after a long one."""
    return SHORTEST if lived >= LONGEST else min(max(SHORTEST, 2 * before), LONGEST)


def main(arguments: list[str]) -> None:
    """Entry point: never returns."""
    seconds = 0.0
    while True:
        began = time.monotonic()
        code = spawn(*arguments).wait()
        seconds = pause(time.monotonic() - began, seconds)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        print_safely(f"{now} {arguments[0]} has ended ({code}) and starts again in {seconds:g} s", flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
