"""Commands that are interrupted, killed or paused: exit code, remaining processes, and the final digest."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlcore.store import checkpoint
from rlcore.store.events import read_events
from tests.processes import (
    NO_STORE,
    count,
    digest_of,
    end,
    environment,
    finish_here,
    kill_all,
    one,
    orphans,
    processes,
    start,
    wait_for,
)
from tests.retries import output_of
from tests.runs import prepare

SEED = random.randrange(10_000)
RUN = {"total_steps": 5000, "checkpoint__every": 300, "evaluation__every": 50000, "algo__update_epochs": 1}
pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


def ctrl_c_twice(process: subprocess.Popen[str], home: Path) -> int:
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    begun = time.monotonic()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    process.wait(60)
    assert time.monotonic() - begun < 5.0  # at once, also on a busy machine
    return 130


def sigterm_to_all(process: subprocess.Popen[str], home: Path) -> int:
    """Like a service manager."""
    for each in processes(home):
        os.kill(each.pid, signal.SIGTERM)
    return 130


def kill_the_trainer(process: subprocess.Popen[str], home: Path) -> int:
    os.kill(one(home, "trainer"), signal.SIGKILL)
    return 1


ENDINGS: list[tuple[Callable[[subprocess.Popen[str], Path], int], str]] = [
    (sigterm_to_all, "continue with: shepherd stage train cut"),
    (ctrl_c_twice, "continue with: shepherd stage train cut"),
    (kill_the_trainer, "shepherd: failed: the trainer was killed by signal 9"),
]


def test_train_ended_by_signals_resumes_to_same_digest(home: Path) -> None:
    print("seed", SEED)
    # The environments have processes too, which also receive a signal to all.
    rng, run = random.Random(SEED), prepare(home / "cut", **RUN, env__sync_env=False)
    for end_with, message in ENDINGS:
        before = count(run, "checkpoint")
        process = start(home, "stage", "train", "cut", **NO_STORE)
        wait_for(lambda before=before: count(run, "checkpoint") > before, "a checkpoint")
        time.sleep(rng.uniform(0.0, 0.3))
        begun = time.monotonic()
        code = end_with(process, home)
        ended, output = end(process)
        assert (ended, message in output, "Traceback" in output) == (code, True, False), (end_with, output)
        assert time.monotonic() - begun < 25
        if end_with is sigterm_to_all:
            (last,) = (event for event in read_events(run.events) if event["kind"] == "end")
            assert (last["status"], count(run, "checkpoint") > before) == ("interrupted", True)
        assert not orphans(home), end_with
        path = checkpoint.newest_good(run.checkpoints)
        assert path is not None and path == next(checkpoint.newest_first(run.checkpoints))
    # Pauses of the trainer and then of the command have no effect.
    before = count(run, "checkpoint")
    process = start(home, "stage", "train", "cut", **NO_STORE)
    wait_for(lambda: count(run, "checkpoint") > before, "a checkpoint")
    for pid in (one(home, "trainer"), process.pid):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(pid, signal.SIGCONT)
    code, output = end(process)
    assert code == 0, output
    assert digest_of(run) == finish_here(prepare(home / "whole", **RUN))


def test_train_saves_checkpoint_when_terminal_closes(home: Path) -> None:
    run = prepare(home / "run", **RUN | {"total_steps": 50000, "checkpoint__every": 50000})
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "flows.cli.main", "stage", "train", "run"],
            environment(home, **NO_STORE) | {"TERM": "vt100"},
        )
    seen = b""
    while b"steps/s" not in seen:  # until the progress line shows that training runs
        seen += os.read(terminal, 4096)
    begun = time.monotonic()
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert (os.waitstatus_to_exitcode(status), time.monotonic() - begun < 25) == (130, True)
    assert not orphans(home)
    assert 0 < int(checkpoint.resolve(run, "latest").name) < 50000


# Single parts in small processes


def script(home: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


PARENT = """
    import subprocess, sys, time
    from rlcore.system.lifeline import spawn
    child = spawn("tests.faults.holds_the_lock", stdout=subprocess.PIPE)
    child.stdout.readline()  # it holds the GIL now
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_spawned_child_holding_gil_ends_with_parent(home: Path) -> None:
    parent = script(home, PARENT)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert child in [p.pid for p in processes(home)]
    parent.kill()
    assert not orphans(home)
    parent.communicate()


STUBBORN = """
    import signal, sys, time
    from flows.process import signals
    signals.LIMIT = float(sys.argv[1])
    with signals.terminable():
        signals.exit_sentence("continue with: this")
        words = ["ready"]
        while True:
            try:
                while words:
                    print(words.pop(), flush=True)
                time.sleep(0.05)  # short, because a signal just before a sleep is handled only after it
            except BaseException as error:  # like a library that swallows it
                print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("signals", [["SIGTERM"], ["SIGINT", "SIGINT"], ["SIGHUP", "SIGHUP", "SIGTERM"]], ids="-".join)
def test_terminable_second_signal_or_timeout_ends_process(home: Path, signals: list[str]) -> None:
    limit = 3.0 if len(signals) == 1 else 3600.0
    process = script(home, STUBBORN, str(limit))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    begun = time.monotonic()
    process.send_signal(signal.Signals[signals[0]])
    assert process.stdout.readline() == "TrainingInterrupted\n"
    for name in signals[1:]:
        time.sleep(0.15)
        process.send_signal(signal.Signals[name])
    rest, output = output_of(process)
    assert (process.returncode, rest, output) == (130, "", "continue with: this\n")
    assert time.monotonic() - begun >= limit or len(signals) > 1


def test_terminable_merges_duplicate_signals(home: Path) -> None:
    process = script(
        home,
        """
        import os, signal, time
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        from flows.process.signals import TrainingInterrupted, terminable
        try:
            with terminable():
                os.kill(os.getpid(), signal.SIGHUP)
                print("still here", flush=True)
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                finally:
                    os.kill(os.getpid(), signal.SIGTERM)  # like `timeout`: to the process and to its group
        except TrainingInterrupted:
            print("ended well")
        """,
    )
    assert output_of(process) == ("still here\nended well\n", "")
