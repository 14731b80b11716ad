"""Environments in processes of their own: for expensive steps, and for engines that may hang or crash."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import weakref
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from rlcore.envs.make import EnvSettings
from rlcore.envs.vector.episodic import EpisodeSeed, EpisodicVectorEnv, Rows
from rlcore.envs.vector.watchdog import START_LIMIT, STEP_TIMEOUT, first_limit
from rlcore.envs.vector.worker import Request, Status, record_dtype
from rlcore.errors import EnvironmentFault, EnvironmentLost, RunError, UserError
from rlcore.spec import EnvSpec
from rlcore.system.lifeline import is_stopped, spawn
from rlcore.types import State

POLL_EVERY = 1.0  # seconds
ERRORS = {kind.__name__: kind for kind in (UserError, EnvironmentFault, RunError)}


class Worker:
    """The parent's end of one environment process; `index` is the environment's number in messages."""

    def __init__(self, settings: EnvSettings, index: int, fresh_instance: bool) -> None:
        self.index = index
        self.connection, theirs = Pipe()
        self.process = spawn(
            "rlcore.envs.vector.worker",
            str(theirs.fileno()),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=2,  # what an environment prints must not mix with what this process prints
        )
        theirs.close()
        self._finalizer = weakref.finalize(self, _end, self.process, self.connection)
        self.send(Request.BUILD, pickle.dumps((settings, index, fresh_instance)))

    def send(self, request: Request, payload: bytes) -> None:
        """Ask for something; the answer must be received before the next request."""
        with contextlib.suppress(OSError):  # it has died: `receive` says how
            self.connection.send_bytes(bytes([request]) + payload)

    def receive(self, deadline: Deadline, step: int) -> bytes:
        """The bytes of the answer, or the worker's own error; `step` of the episode is for messages.

        An EnvironmentLost where the process has died or did not answer in time: then it is killed.
        """
        where = f"environment {self.index}, step {step} of its episode"
        try:
            if not deadline.wait(self):
                self.process.kill()
                raise EnvironmentLost(
                    f"{where}: hung; no answer within {deadline.limit:g} s (env.step_timeout), its process was killed"
                )
            answer = self.connection.recv_bytes()
        except (EOFError, ConnectionError):
            raise EnvironmentLost(f"{where}: its process died ({self._exit()})") from None
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


class Deadline:
    """The time left for workers' answers: of `limit` seconds, those in which both they and this process ran.

    A process that somebody paused (SIGSTOP) has not hung, and after a pause of this one the answers are there.
    """

    def __init__(self, limit: float) -> None:
        self.limit = self.left = limit

    def wait(self, worker: Worker) -> bool:
        """Whether there is an answer (or the end of the pipe) before the time is used up."""
        while not worker.connection.poll(slice := min(POLL_EVERY, max(0.0, self.left))):
            if self.left <= 0:
                return False
            if not is_stopped(worker.process.pid):
                self.left -= slice
        return True


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    try:
        process.wait(timeout=1)  # idle ones end by themselves when their pipe closes
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SubprocessVectorEnv(EpisodicVectorEnv):
    """Environments in one process each; the same trajectories, bit for bit, as `SerialVectorEnv`.

    `step_timeout` is in seconds, for one step of all of them.
    """

    def __init__(
        self,
        settings: EnvSettings,
        num_envs: int,
        episode_seed: EpisodeSeed,
        tier: str = "snapshot",
        fresh_instance: bool = False,
        step_timeout: float = STEP_TIMEOUT,
    ) -> None:
        self.step_timeout = step_timeout
        self.workers: list[Worker] = []
        self._steps = np.zeros(num_envs, np.int64)
        try:
            self.workers.extend(Worker(settings, index, fresh_instance) for index in range(num_envs))
            built = [pickle.loads(answer) for answer in self._answers(max(START_LIMIT, step_timeout))]
        except BaseException:
            self.close()
            raise
        spec, bounds = built[0]
        super().__init__(num_envs, EnvSpec.from_json(spec), bounds, episode_seed, tier, fresh_instance)
        self._steps = self._length
        self._record = record_dtype(self.spec)
        self._names = list(zip(self.spec.obs, self._record.names or (), strict=False))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self.workers]

    def _answers(self, limit: float) -> list[bytes]:
        deadline = Deadline(limit)
        return [worker.receive(deadline, int(self._steps[worker.index])) for worker in self.workers]

    def _ask(self, request: Request, payloads: list[Any], limit: float) -> list[bytes]:
        for worker, payload in zip(self.workers, payloads, strict=True):
            worker.send(request, pickle.dumps(payload))
        return self._answers(limit)

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: Rows) -> list[int]:
        for index, worker in enumerate(self.workers):
            if index in seeds or action is None:
                worker.send(Request.RESET, pickle.dumps((seeds[index], index in self._rebuild)))
            else:
                worker.send(Request.STEP, action[index].tobytes())
        limit = first_limit(self.step_timeout) if self._builds(action, seeds) else self.step_timeout
        _, reward, terminated, truncated = rows
        records = self._records(self._answers(limit), rows[0], range(self.num_envs))
        for index, record in enumerate(records):
            reward[index] = record["reward"]
            terminated[index], truncated[index] = record["terminated"], record["truncated"]
        return (terminated | truncated).nonzero()[0].tolist()

    def _records(self, answers: list[bytes], obs: dict[str, np.ndarray], indices: Any) -> list[Any]:
        """Answers of some environments' workers; their observations are written."""
        records = [np.frombuffer(answer, self._record, 1)[0] for answer in answers]
        for index, record in zip(indices, records, strict=True):
            for key, name in self._names:
                obs[key][index] = record[name]
        return records

    def _capture(self) -> list[State]:
        return [pickle.loads(a) for a in self._ask(Request.CAPTURE, [None] * self.num_envs, self.step_timeout)]

    def _restore(self, states: list[State]) -> None:
        self._ask(Request.RESTORE, states, max(START_LIMIT, self.step_timeout))

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        # Re-simulating takes as long as it took to play: each step may use its limit.
        longest = max((len(actions) for _, actions in episodes.values()), default=0)
        limit = START_LIMIT + longest * self.step_timeout
        for index, (seed, actions) in episodes.items():
            self.workers[index].send(Request.REPLAY, pickle.dumps((seed, actions)))
        deadline = Deadline(limit)
        answers = [self.workers[i].receive(deadline, int(self._length[i])) for i in episodes]
        self._records(answers, obs, episodes)

    def close(self) -> None:
        """End all worker processes."""
        for worker in self.workers:
            worker.connection.close()  # all of them see the end of their pipe before the first is waited for
        for worker in self.workers:
            worker.close()
