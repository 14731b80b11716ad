"""Environments in subprocesses: equality with one process, faults, and end of all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from rlcore.config.groups import EnvConfig
from rlcore.envs.exact.recording import random_action
from rlcore.envs.make import EnvSettings
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.serial import SerialVectorEnv
from rlcore.envs.vector.subprocess import SubprocessVectorEnv
from rlcore.errors import EnvironmentFault, UserError
from tests.retries import Patience, run_command
from tests.rlcore.envs.test_make import CHAIN

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.rlcore.envs.probe_envs")


@pytest.fixture
def open_vector():
    envs = []
    yield lambda *args, **kwargs: envs.append(workers(*args, **kwargs)) or envs[-1]
    for env in envs:
        env.close()


def workers(env_id: str, num_envs: int = 2, tier: str = "snapshot", timeout: float = 60.0, **options):
    seeds = EpisodeSeeds(4, "env", (0,), first_only=tier == "snapshot")
    return SubprocessVectorEnv(EnvSettings(env_id, **options), num_envs, seeds, tier, step_timeout=timeout)


def as_bytes(arrival) -> bytes:
    parts = [*arrival.obs.values(), arrival.reward, arrival.terminated, arrival.truncated, arrival.is_first]
    return b"".join(part.tobytes() for part in parts)


def gone(pid: int) -> bool:
    """Return True if the process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def all_gone(pids: list[int]) -> bool:
    """Wait until processes end, up to a minute, and return whether all did."""
    patience = Patience(idle=3.0, limit=60.0)
    while not (ended := all(gone(pid) for pid in pids)) and not patience.over:
        time.sleep(0.02)
    return ended


# Equality with one process


@pytest.mark.parametrize(
    ("env_id", "tier", "options"),
    [
        ("CartPole-v1", "snapshot", {"num_stack": 2, "reward_as_observation": True}),
        ("LunarLander-v3", "replay", {}),
        ("Probe/Camera-v0", "snapshot", CHAIN),
        ("Blackjack-v1", "snapshot", {}),
    ],
)
def test_subprocess_vector_matches_serial_vector(open_vector, env_id, tier, options):
    serial = make_vector_env(EnvSettings(env_id, **options), num_envs=2, seed=4, tier=tier)
    assert isinstance(serial, SerialVectorEnv)
    remote = open_vector(env_id, tier=tier, **options)
    assert remote.spec == serial.spec
    rng = np.random.default_rng(0)
    actions = [np.stack([np.asarray(random_action(serial.spec, rng)) for _ in range(2)]) for _ in range(120)]
    assert as_bytes(serial.reset()) == as_bytes(remote.reset())
    for action in actions[:60]:
        assert as_bytes(serial.step(action)) == as_bytes(remote.step(action))
    # Each vector continues from the state of the other.
    from_serial, from_remote = serial.state_dict(), remote.state_dict()
    serial.load_state_dict(from_remote)
    remote.load_state_dict(from_serial)
    for action in actions[60:]:
        assert as_bytes(serial.step(action)) == as_bytes(remote.step(action))
    assert serial.pop_episodes() == remote.pop_episodes() != []


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_subprocess_vector_passes_continuous_actions_exactly(open_vector, env_id):
    serial, remote = make_vector_env(EnvSettings(env_id), num_envs=2, seed=4), open_vector(env_id)
    serial.reset(), remote.reset()
    for step in range(30):
        action = np.random.default_rng(step).uniform(-1, 1, (2, *serial.spec.action.shape)).astype(np.float32)
        assert as_bytes(serial.step(action)) == as_bytes(remote.step(action))


def test_sync_env_false_creates_one_process_per_environment():
    envs = make_vector_env(EnvConfig(id="CartPole-v1", sync_env=False, step_timeout=5.0), num_envs=2, seed=1)
    try:
        assert isinstance(envs, SubprocessVectorEnv)
        assert len(set(envs.pids)) == 2 and os.getpid() not in envs.pids
        assert envs.step_timeout == 5.0
        assert envs.reset().is_first.all()
    finally:
        envs.close()


def test_worker_never_imports_torch(tmp_path):
    code = "import sys, rlcore.envs.vector.worker; print('torch' in sys.modules, 'lightning_fabric' in sys.modules)"
    done = run_command([sys.executable, "-c", code], cwd=ROOT, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# Errors and faults


def test_subprocess_vector_reports_user_errors():
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'"):
        workers("CartPol-v1")


def faulty(open_vector, fault: str, timeout: float = 60.0):
    envs = open_vector("Probe/Counter-v0", timeout=timeout, wrapper={"lengths": [5], "fault": fault})
    envs.reset()
    envs.step(np.zeros(2, int))
    return envs


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", r"key 'state' is nan at \[1\]"),
        ("raise", "step raised RuntimeError: the engine said no$"),
        ("exit", r"its process died \(exit code 7\)"),
    ],
)
def test_subprocess_fault_names_environment_and_step(open_vector, fault, message):
    envs = faulty(open_vector, fault)
    with pytest.raises(EnvironmentFault, match=f"^environment 0, step 2 of its episode: {message}"):
        envs.step(np.zeros(2, int))


def test_step_names_killed_process(open_vector):
    envs = faulty(open_vector, "")
    os.kill(envs.pids[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match=r"environment 1, step 2 .*died \(exit code -9, SIGKILL\)"):
        for _ in range(2):
            envs.step(np.zeros(2, int))


def test_killed_process_is_named_with_step_of_restored_episode(open_vector):
    first, second = (open_vector("CartPole-v1") for _ in range(2))
    first.reset()
    for _ in range(3):
        first.step(np.zeros(2, np.int64))
    second.load_state_dict(first.state_dict())
    os.kill(second.pids[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match=r"environment 1, step 4 .*died"):
        second.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("fault", ["hang", "spin"])
def test_step_timeout_kills_hanging_process(open_vector, fault):
    envs = faulty(open_vector, fault, timeout=0.5)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=r"environment 0, step 2 .*hung; no answer within 0.5 s"):
        envs.step(np.zeros(2, int))
    assert time.monotonic() - began < 300  # the fault sleeps 600 s
    assert all_gone(envs.pids[:1]) and not gone(envs.pids[1])
    pids = envs.pids
    envs.close()
    assert all_gone(pids)


# End of processes


def test_close_ends_all_processes():
    envs = workers("CartPole-v1")
    pids = envs.pids
    envs.close()
    assert all(gone(pid) for pid in pids)
    envs.close()


def test_garbage_collected_vector_ends_processes():
    envs = workers("CartPole-v1")
    pids = envs.pids
    del envs
    assert all_gone(pids)


@pytest.mark.parametrize("fault", ["", "hang", "spin"])
def test_processes_end_with_killed_parent(fault):
    script = f"""
        import sys, numpy as np
        sys.path.insert(0, {str(HERE)!r})
        from rlcore.envs.make import EnvSettings
        from rlcore.envs.vector.subprocess import SubprocessVectorEnv
        settings = EnvSettings("Probe/Counter-v0", wrapper={{"lengths": [9], "fault": {fault!r}}})
        envs = SubprocessVectorEnv(settings, 2, lambda e, k: 0)
        envs.reset()
        envs.step(np.zeros(2, int))
        print(*envs.pids, flush=True)
        envs.step(np.zeros(2, int))
        sys.stdin.read()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.3)  # the second step has started
        assert not any(gone(pid) for pid in pids)
        parent.kill()
        assert all_gone(pids)
    finally:
        parent.kill()
        parent.communicate()


def test_subprocess_output_goes_to_stderr(open_vector, capfd):
    envs = faulty(open_vector, "print")
    envs.step(np.zeros(2, int))
    output = capfd.readouterr()
    assert "hello from the engine" in output.err and output.out == ""
