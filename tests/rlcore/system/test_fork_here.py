"""A child forked from the process itself: what it has of its parent, and how both end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from rlcore.system.lifeline import alive
from tests.retries import wait_for

PARENT = """
import os, signal, subprocess, sys, threading
from rlcore.system.fork_here import fork_here

def run():
    here = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
    print(os.getpid(), os.getsid(0), open("/proc/self/comm").read().strip(), kept in here, lock in here, flush=True)
    print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, flush=True)
    if sys.stdin.readline().startswith("fail"):
        raise ValueError("so it is")

lock, kept = os.pipe()
signal.signal(signal.SIGTERM, lambda *told: None)
def start():
    return fork_here("named", run, keep=[kept], stderr=2)
"""


def parent(script: str) -> subprocess.Popen[str]:
    """A process that has `start`, and no thread: pytest may have some."""
    return subprocess.Popen(
        [sys.executable, "-c", PARENT + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_child_has_what_it_is_to_keep_and_nothing_else_of_its_parent() -> None:
    said, _ = parent("child = start(); print(child.pid, child.stdout.readline().decode(), end='')").communicate()
    pid, itself, session, name, kept, lock = said.split()
    assert pid == itself == session
    assert (name, kept, lock) == ("named", "True", "False")


def test_signals_that_end_its_parent_are_nothing_to_it() -> None:
    said, _ = parent("child = start(); child.stdout.readline(); print(child.stdout.readline().decode())").communicate()
    assert said.strip() == "True"


def test_exit_codes_are_those_of_a_process() -> None:
    script = (
        "codes = []\n"
        "for word in (b'well\\n', b'fail\\n'):\n"
        "    child = start(); child.stdin.write(word); child.stdin.flush(); codes.append(child.wait(60))\n"
        "child = start(); child.stdout.readline(); child.kill(); codes.append(child.wait(60)); print(codes)\n"
    )
    said, failed = parent(script).communicate()
    assert said.strip() == "[0, 1, -9]"
    assert "ValueError: so it is" in failed


def test_whoever_waits_in_another_thread_keeps_nobody_from_giving_up() -> None:
    script = (
        "child = start(); child.stdout.readline()\n"
        "waiting = threading.Thread(target=child.wait); waiting.start()\n"
        "try: child.wait(0.1)\n"
        "except subprocess.TimeoutExpired: print('gave up')\n"
        "child.kill(); waiting.join(); print(child.wait())\n"
    )
    assert parent(script).communicate(timeout=60)[0].split("\n")[:2] == ["gave up", "-9"]


def test_a_child_ends_with_its_parent() -> None:
    with parent("child = start(); print(child.pid, flush=True); signal.pause()") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert alive(child)
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not alive(child), "the end of the child")


def test_a_process_with_threads_is_not_forked() -> None:
    script = "threading.Thread(target=threading.Event().wait, daemon=True).start(); print(start())"
    assert parent(script).communicate()[0].strip() == "None"
