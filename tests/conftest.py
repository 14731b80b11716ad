"""Ground of every test: nothing of the user's machine settings, and no run written into the checkout."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before any test module imports a library that reads it: nothing that a user, a shell, `make` or a git hook has set.
KEPT = """
    PATH HOME USER LOGNAME TMPDIR VIRTUAL_ENV CC CXX PYTHONPATH PYTHONHOME PYTHONHASHSEED
    SOAK KILLS_SEED SERVER_AWAY TESTS_SHARED
"""
for name in os.environ.keys() - set(KEPT.split()):
    if not name.startswith(("PYTEST_", "LD_", "CUDA_", "NVIDIA_", "CONDA_", "COVERAGE_")):
        del os.environ[name]
os.environ |= {
    "MPLBACKEND": "Agg",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "OMP_NUM_THREADS": "1",  # the same bits on every machine, and workers do not wait for each other
    "PIP_CONFIG_FILE": os.devnull,  # no constraints, no mirrors
    "LC_ALL": "C.UTF-8",
    "SHELL": "/bin/sh",  # DVC runs stages with it
    "TZ": "UTC",
}
time.tzset()

gc.set_threshold(50_000, 20, 20)  # a worker imports everything there is: to look through it is a tenth of its time

# What `nohup` and a shell's `&` have us ignore, every process that a test starts would ignore too.
if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

# A home of the session's own, taken away at its end; tests that need a fresh one make it themselves.
_home = tempfile.TemporaryDirectory(prefix="shepherd-tests-", ignore_cleanup_errors=True)
atexit.register(_home.cleanup)
os.environ["SHEPHERD_HOME"] = _home.name

# What all workers of the session share; made by the process that starts them.
if "TESTS_SHARED" not in os.environ:
    _shared = tempfile.TemporaryDirectory(prefix="shepherd-tests-shared-", ignore_cleanup_errors=True)
    atexit.register(_shared.cleanup)
    os.environ["TESTS_SHARED"] = _shared.name
    Path(_shared.name, "gitconfig").write_text("[safe]\n    directory = *\n")
    os.mkfifo(f"{_shared.name}/session")
    _session = os.open(f"{_shared.name}/session", os.O_RDWR)  # read by what is to end with the session
os.environ |= {"GIT_CONFIG_GLOBAL": f"{os.environ['TESTS_SHARED']}/gitconfig", "GIT_CONFIG_SYSTEM": os.devnull}


# Files of minutes, the longest first: one of them begun last would be waited for by all other workers.
LONG = """
    flows/workers/test_deployments flows/sweeps/test_sweeps flows/workers/test_postgres kills/test_kills
    kills/test_algorithms flows/cli/test_commands contract/test_conformance flows/registry/test_models
    examples/test_from_outside flows/test_train flows/test_dvc learning/test_sac_learns flows/test_diambra_tutorial
    contract/test_images kills/test_suites flows/runs/test_warm
"""
PLACES = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(LONG.split())}
assert all(path.exists() for path in PLACES), "a file of LONG is not there"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then the others with slow tests: small ones fill the workers' last minutes."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (PLACES.get(item.path, len(PLACES)), item.path not in slow))


@pytest.fixture(scope="session")
def warm_folder() -> Iterator[str]:
    """A process that forks trainers for all tests of this worker that want them so."""
    from flows.runs.warm import warm_trainers
    from flows.settings import WARM

    with warm_trainers():
        yield os.environ.pop(WARM)


@pytest.fixture(scope="module")
def warm(warm_folder: str) -> Iterator[None]:
    """For a module whose tests start trainers and are not about how one is started: they are forked."""
    os.environ["SHEPHERD_WARM"] = warm_folder
    yield
    os.environ.pop("SHEPHERD_WARM", None)
