"""Waits of the tests last as long as their processes work, and not longer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.retries import SESSION, output_of, run_command, wait_for

SPIN = "import sys, time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\nprint('done')"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=1.2)], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_output_of_waits_while_process_works(busy: subprocess.Popen[bytes]) -> None:
    assert output_of(busy, idle=0.4) == (b"done\n", None)


@pytest.mark.slow
def test_wait_for_gives_up_if_all_processes_are_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SESSION, str(tmp_path))  # ignore the processes of other test workers
    asleep = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
    assert asleep.stdout is not None
    asleep.stdout.readline()
    try:
        with pytest.raises(AssertionError, match="a file did not come, and no process has done anything for 0.4 s"):
            wait_for((tmp_path / "file").exists, "a file", idle=0.4)
        with pytest.raises(AssertionError, match="does not end"):
            output_of(asleep, idle=0.4)
    finally:
        asleep.kill()
        asleep.communicate()


def test_run_command_matches_subprocess_run() -> None:
    done = run_command([sys.executable, "-c", "import sys; print(1); sys.exit('no')"], text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "1\n", "no\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], check=True)


def test_wait_for_returns_true_value_at_once() -> None:
    began = time.process_time()
    assert wait_for(lambda: "it", "it") == "it"
    assert time.process_time() - began < 1.0
