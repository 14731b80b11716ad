"""What every test needs: nothing of the user's machine settings, and no run written into the checkout."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading

import pytest

# Set before any test module imports a library that reads them.
os.environ["MPLBACKEND"] = "Agg"
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same bits on every machine, and workers do not wait for each other
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the project, each for itself
for name in [name for name in os.environ if name.startswith(("SHEPHERD_", "SHEEPRL_", "MLFLOW_", "PREFECT_"))]:
    del os.environ[name]

gc.set_threshold(50_000, 20, 20)  # a worker imports everything there is: to look through it is a tenth of its time

# What `nohup` and a shell's `&` have us ignore, every process that a test starts would ignore too.
if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

# A home of the session's own, taken away at its end; tests that need a fresh one make it themselves.
_home = tempfile.TemporaryDirectory(prefix="shepherd-tests-", ignore_cleanup_errors=True)
os.environ["SHEPHERD_HOME"] = _home.name

# What all workers of the session share; made by the process that starts them.
if "TESTS_SHARED" not in os.environ:
    _shared = tempfile.TemporaryDirectory(prefix="shepherd-tests-shared-", ignore_cleanup_errors=True)
    os.environ["TESTS_SHARED"] = _shared.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: the last minutes of two workers are then filled with small ones."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
