"""Environment of every test: no settings of the user's machine, and no run written into the checkout."""

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

# Before any test module imports a library that reads them: remove variables of users, shells, `make` and git hooks.
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
    "OMP_NUM_THREADS": "1",  # the same bits on every machine, and test workers do not wait for each other
    "PIP_CONFIG_FILE": os.devnull,  # no constraints, no mirrors
    "LC_ALL": "C.UTF-8",
    "SHELL": "/bin/sh",  # DVC runs stages with it
    "TZ": "UTC",
}
time.tzset()

gc.set_threshold(50_000, 20, 20)  # a test worker imports nearly everything, and collecting it takes a tenth of its time

# Every process that a test starts would inherit signals ignored by `nohup` or a shell's `&`.
if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

# A home for the session, removed at its end; tests that need a fresh one make it themselves.
_home = tempfile.TemporaryDirectory(prefix="shepherd-tests-", ignore_cleanup_errors=True)
atexit.register(_home.cleanup)
os.environ["SHEPHERD_HOME"] = _home.name

# Shared by all test workers of the session; made by the process that starts them.
if "TESTS_SHARED" not in os.environ:
    _shared = tempfile.TemporaryDirectory(prefix="shepherd-tests-shared-", ignore_cleanup_errors=True)
    atexit.register(_shared.cleanup)
    os.environ["TESTS_SHARED"] = _shared.name
    Path(_shared.name, "gitconfig").write_text("[safe]\n    directory = *\n")
    os.mkfifo(f"{_shared.name}/session")
    _session = os.open(f"{_shared.name}/session", os.O_RDWR)  # read by processes that must end with the session
os.environ |= {
    "GIT_CONFIG_GLOBAL": f"{os.environ['TESTS_SHARED']}/gitconfig",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "TORCHINDUCTOR_CACHE_DIR": f"{os.environ['TESTS_SHARED']}/inductor",  # precompiled headers take seconds
}


# Files that take long, the longest first: if one began last, all other test workers would wait for it.
LONG = """
    flows/workers/test_deployments flows/sweeps/test_sweeps flows/workers/test_postgres kills/test_kills
    kills/test_algorithms flows/cli/test_commands contract/test_conformance_plan2explore
    contract/test_conformance_dreamers contract/test_conformance flows/registry/test_models
    examples/test_from_outside flows/test_train flows/test_dvc learning/test_sac_learns flows/test_diambra_tutorial
    contract/test_images kills/test_suites flows/runs/test_warm rlcore/train/test_build rlcore/train/test_callbacks
    rlcore/store/test_run_files rlcore/evaluation/test_export rlcore/train/test_memory_estimate rlcore/train/test_warmup
"""
PLACES = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(LONG.split())}
assert all(path.exists() for path in PLACES), "a file of LONG is not there"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, then others with slow tests: short ones fill the last minutes of test workers."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (PLACES.get(item.path, len(PLACES)), item.path not in slow))


@pytest.fixture(scope="session")
def warm_folder() -> Iterator[str]:
    """Yield the folder of a process that forks trainers for all tests of this worker that use it."""
    from flows.runs.warm import warm_trainers
    from flows.settings import WARM

    with warm_trainers():
        yield os.environ.pop(WARM)


@pytest.fixture(scope="module")
def warm(warm_folder: str) -> Iterator[None]:
    """Fork trainers in a module whose tests start trainers but do not test how they start."""
    os.environ["SHEPHERD_WARM"] = warm_folder
    yield
    os.environ.pop("SHEPHERD_WARM", None)
