"""The tests' own waits: as long as a process of theirs works, and not longer."""

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
def test_a_wait_lasts_as_long_as_a_process_works(busy: subprocess.Popen[bytes]) -> None:
    assert output_of(busy, idle=0.4) == (b"done\n", None)


@pytest.mark.slow
def test_a_wait_for_what_nobody_works_on_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SESSION, str(tmp_path))  # what other workers' tests do beside it is not of this one
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


def test_a_command_gives_what_subprocess_would() -> None:
    done = run_command([sys.executable, "-c", "import sys; print(1); sys.exit('no')"], text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "1\n", "no\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], check=True)


def test_what_is_true_already_is_given_at_once() -> None:
    began = time.process_time()
    assert wait_for(lambda: "it", "it") == "it"
    assert time.process_time() - began < 1.0
