"""Environments in processes of their own: for expensive steps, and for engines that may hang or crash."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from rlcore.envs.episodic import EpisodeSeed, EpisodicVectorEnv, Rows
from rlcore.envs.make import EnvSettings
from rlcore.envs.worker import Op, Status, record_dtype
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.types import EnvSpec, State

START_LIMIT = 120.0  # seconds to import, build and reset for the first time, or to re-simulate an episode
ERRORS = {kind.__name__: kind for kind in (UserError, EnvironmentFault, RunError)}


class Worker:
    """The parent's end of one environment process.

    Args:
        settings: of the environment.
        index: the environment's number, for messages.
        fresh_instance: a newly built environment for every episode.
    """

    def __init__(self, settings: EnvSettings, index: int, fresh_instance: bool) -> None:
        self.index = index
        self.connection, theirs = Pipe()
        # The child reads the lifeline and we never write: when this process ends in any way, the kernel closes our end
        # and signals the child, even in the middle of a step.
        lifeline, ours = os.pipe()
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlcore.envs.worker", str(theirs.fileno()), str(lifeline)],
            pass_fds=(theirs.fileno(), lifeline),
            stdin=subprocess.DEVNULL,
            stdout=2,  # what an environment prints must not mix with what this process prints
            env=os.environ | {"PYTHONPATH": path},
        )
        theirs.close()
        os.close(lifeline)
        self._finalizer = weakref.finalize(self, _end, self.process, self.connection, ours)
        self.send(Op.BUILD, pickle.dumps((settings, index, fresh_instance)))

    def send(self, op: Op, payload: bytes = b"") -> None:
        """Ask for something; the answer must be received before the next question."""
        with contextlib.suppress(OSError):  # it has died: `receive` says how
            self.connection.send_bytes(bytes([op]) + payload)

    def receive(self, deadline: float, step: int, limit: float) -> bytes:
        """The answer.

        Args:
            deadline: by `time.monotonic`.
            step: of the episode, for messages.
            limit: the time limit, for messages.

        Returns:
            Its bytes.

        Raises:
            EnvironmentFault: no answer in time (the process is killed), or the process has died.
            UserError: the environment cannot be made.
            RunError: whatever else the worker says.
        """
        where = f"environment {self.index}, step {step} of its episode"
        try:
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                self.process.kill()
                raise EnvironmentFault(f"{where}: hung; no answer within {limit:g} s, its process was killed")
            answer = self.connection.recv_bytes()
        except (EOFError, ConnectionError):
            raise EnvironmentFault(f"{where}: its process died ({self._exit()})") from None
        if answer[0] == Status.ERROR:
            kind, text = pickle.loads(answer[1:])
            raise ERRORS.get(kind, EnvironmentFault)(text)
        return answer[1:]

    def _exit(self) -> str:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "its pipe closed while it still runs"
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"exit code {code}, {signal.Signals(-code).name}"
        except ValueError:
            return f"exit code {code}"

    def close(self) -> None:
        """End the process."""
        self._finalizer()


def _end(process: subprocess.Popen[bytes], connection: Connection, lifeline: int) -> None:
    connection.close()
    try:
        process.wait(timeout=1)  # idle ones end by themselves when their pipe closes
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    os.close(lifeline)


class SubprocessVectorEnv(EpisodicVectorEnv):
    """Environments in one process each; the same trajectories, bit for bit, as `SerialVectorEnv`.

    Args:
        settings: of each environment.
        num_envs: B.
        episode_seed: (env index, episode index) -> seed of that episode; None = go on with the env's own generator.
        tier: how the state is saved.
        fresh_instance: a newly built environment for every episode.
        step_timeout: seconds for one step of all environments.

    Raises:
        UserError: the environment cannot be made.
    """

    def __init__(
        self,
        settings: EnvSettings,
        num_envs: int,
        episode_seed: EpisodeSeed,
        tier: str = "snapshot",
        fresh_instance: bool = False,
        step_timeout: float = 60.0,
    ) -> None:
        self.step_timeout = step_timeout
        self.workers: list[Worker] = []
        self._steps = np.zeros(num_envs, np.int64)
        try:
            self.workers.extend(Worker(settings, index, fresh_instance) for index in range(num_envs))
            told = [pickle.loads(answer) for answer in self._answers(START_LIMIT)]
        except BaseException:
            self.close()
            raise
        spec, bounds = told[0]
        super().__init__(num_envs, EnvSpec.from_json(spec), bounds, episode_seed, tier)
        self._steps = self._length
        self._record = record_dtype(self.spec)
        self._names = list(zip(self.spec.obs, self._record.names or (), strict=False))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self.workers]

    def _answers(self, limit: float) -> list[bytes]:
        deadline = time.monotonic() + limit
        return [worker.receive(deadline, int(self._steps[worker.index]), limit) for worker in self.workers]

    def _ask(self, op: Op, payloads: list[Any], limit: float) -> list[bytes]:
        for worker, payload in zip(self.workers, payloads, strict=True):
            worker.send(op, pickle.dumps(payload))
        return self._answers(limit)

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: Rows) -> None:
        for index, worker in enumerate(self.workers):
            if index in seeds or action is None:
                worker.send(Op.RESET, pickle.dumps((seeds[index], index in self._rebuild)))
            else:
                worker.send(Op.STEP, action[index].tobytes())
        # The first reset of all includes imports; a later one is part of a step.
        self._fill(self._answers(self.step_timeout if action is not None else START_LIMIT), rows, range(self.num_envs))

    def _fill(self, answers: list[bytes], rows: Rows, indices: Any) -> None:
        obs, reward, terminated, truncated = rows
        for index, answer in zip(indices, answers, strict=True):
            record = np.frombuffer(answer, self._record, 1)[0]
            for key, name in self._names:
                obs[key][index] = record[name]
            reward[index] = record["reward"]
            terminated[index], truncated[index] = record["terminated"], record["truncated"]

    def _capture(self) -> list[State]:
        return [pickle.loads(a) for a in self._ask(Op.CAPTURE, [None] * self.num_envs, self.step_timeout)]

    def _restore(self, states: list[State]) -> None:
        self._ask(Op.RESTORE, states, START_LIMIT)

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], rows: Rows) -> None:
        # Re-simulating takes as long as it took to play: each step may use its limit.
        longest = max((len(actions) for _, actions in episodes.values()), default=0)
        limit = START_LIMIT + longest * self.step_timeout
        for index, (seed, actions) in episodes.items():
            self.workers[index].send(Op.REPLAY, pickle.dumps((seed, actions)))
        deadline = time.monotonic() + limit
        answers = [self.workers[i].receive(deadline, int(self._length[i]), limit) for i in episodes]
        self._fill(answers, rows, episodes)

    def close(self) -> None:
        """End all worker processes."""
        for worker in self.workers:
            worker.connection.close()  # all of them see the end of their pipe before the first is waited for
        for worker in self.workers:
            worker.close()
