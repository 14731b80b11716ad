"""Vectorized environment with one process per environment, for slow steps and for engines that can hang or crash.

Observations are passed in shared memory: an image is copied once in the worker and once in the parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from rlcore.envs.exact.stacked import stack
from rlcore.envs.make import EnvSettings
from rlcore.envs.spaces import Bounds
from rlcore.envs.vector.episodic import ArrivalArrays, EpisodeSeed, EpisodicVectorEnv
from rlcore.envs.vector.restarts import Restarts
from rlcore.envs.vector.watchdog import START_LIMIT, STEP_TIMEOUT, first_limit
from rlcore.envs.vector.worker import Request, SharedRow, Status
from rlcore.errors import EnvironmentFault, EnvironmentLost, RunError, UserError
from rlcore.spec import EnvSpec
from rlcore.system.lifeline import is_stopped, spawn
from rlcore.types import State

POLL_EVERY = 1.0  # seconds
ERRORS = {kind.__name__: kind for kind in (UserError, EnvironmentFault, RunError)}


class Worker:
    """Handle of the parent process for the worker process of one environment.

    Args:
        settings: settings of the environment.
        index: index of the environment, for messages.
        fresh_instance: if True, a new environment is built for every episode.
        lost: True if the process replaces one that died or hung.
        info_keys: value of `env.info_keys`.

    Attributes:
        row: observation, reward, terminated and truncated of the last time step, in shared memory; available after
            `receive_spec`.
    """

    row: SharedRow

    def __init__(
        self,
        settings: EnvSettings,
        index: int,
        fresh_instance: bool,
        lost: bool = False,
        info_keys: Sequence[str] = (),
    ) -> None:
        self.index, self._infos = index, len(info_keys)
        self.connection, theirs = Pipe()
        self._memory = os.memfd_create(f"environment {index}")
        self.process = spawn(
            "rlcore.envs.vector.worker",
            str(theirs.fileno()),
            str(self._memory),
            pass_fds=(theirs.fileno(), self._memory),
            stdin=subprocess.DEVNULL,
            stdout=2,  # stderr, so that output of the environment does not mix with stdout of this process
        )
        theirs.close()
        self._finalizer = weakref.finalize(self, _end, self.process, self.connection, self._memory)
        self.send(Request.BUILD, pickle.dumps((settings, index, fresh_instance, lost, info_keys)))

    def receive_spec(self, deadline: Deadline) -> tuple[EnvSpec, Bounds]:
        """Wait until the worker has built the environment; return its spec and the bounds of its observations.

        Raise the error that the worker has sent, or EnvironmentLost if the process died or hung.
        """
        spec_json, bounds = pickle.loads(self.receive(deadline, 0))
        spec = EnvSpec.from_json(spec_json)
        self.row = SharedRow(spec, self._memory, self._infos)
        return spec, bounds

    def send(self, request: Request, payload: bytes) -> None:
        """Send a request; its answer must be received before the next request."""
        with contextlib.suppress(OSError):  # the process has died: `receive` reports it
            self.connection.send_bytes(bytes([request]) + payload)

    def receive(self, deadline: Deadline, step: int) -> bytes:
        """Return the bytes of the worker's answer, or raise the error that the worker has sent.

        `step` is the step of the episode, for messages. Raise EnvironmentLost if the process has died. If the process
        does not answer before the deadline, kill it and raise EnvironmentLost.
        """
        where = f"environment {self.index}, step {step} of its episode"
        try:
            if not deadline.wait(self):
                self.process.kill()
                raise EnvironmentLost(
                    f"{where}: hung; no answer within {deadline.limit:g} s (env.step_timeout); its process was killed"
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
            return "its pipe closed, but it still runs"
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"exit code {code}, {signal.Signals(-code).name}"
        except ValueError:
            return f"exit code {code}"

    def close(self) -> None:
        """End the worker process."""
        self._finalizer()


class Deadline:
    """Time limit for a worker's answer, in seconds.

    The limit counts only the time during which both the worker and this process run, so that a process that is paused
    (SIGSTOP) is not treated as hung.
    """

    def __init__(self, limit: float) -> None:
        self.limit = self.left = limit

    def wait(self, worker: Worker) -> bool:
        """Wait for a worker; return True when an answer can be read or the worker's pipe is closed.

        Return False if neither happens within the time limit.
        """
        while not worker.connection.poll(slice := min(POLL_EVERY, max(0.0, self.left))):
            if self.left <= 0:
                return False
            if not is_stopped(worker.process.pid):
                self.left -= slice
        return True


def _end(process: subprocess.Popen[bytes], connection: Connection, memory: int) -> None:
    connection.close()
    os.close(memory)
    try:
        process.wait(timeout=1)  # an idle worker ends when its pipe closes
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SubprocessVectorEnv(EpisodicVectorEnv):
    """Vectorized environment with one process per environment.

    Trajectories are bit-identical to those of `SerialVectorEnv`. `settings` are the settings of each environment, and
    `step_timeout` is the time limit in seconds for one step of all B environments. For the other arguments, see
    `EpisodicVectorEnv`.
    """

    def __init__(
        self,
        settings: EnvSettings,
        num_envs: int,
        episode_seed: EpisodeSeed,
        tier: str = "snapshot",
        fresh_instance: bool = False,
        step_timeout: float = STEP_TIMEOUT,
        info_keys: Sequence[str] = (),
    ) -> None:
        self.step_timeout, self._settings, self._info_keys = step_timeout, settings, info_keys
        self._restarts = [Restarts(settings.restart) for _ in range(num_envs)]  # restarts of lost processes
        self.workers: list[Worker] = []
        try:
            self.workers.extend(Worker(settings, i, fresh_instance, info_keys=info_keys) for i in range(num_envs))
            deadline = Deadline(max(START_LIMIT, step_timeout))
            built = [worker.receive_spec(deadline) for worker in self.workers]
        except BaseException:
            self.close()
            raise
        super().__init__(num_envs, *built[0], episode_seed, tier, fresh_instance, info_keys)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self.workers]

    def _answers(self, limit: float) -> list[bytes]:
        deadline = Deadline(limit)
        return [worker.receive(deadline, int(self._episodes.length[worker.index])) for worker in self.workers]

    def _ask(self, request: Request, payloads: list[Any], limit: float) -> list[bytes]:
        for worker, payload in zip(self.workers, payloads, strict=True):
            worker.send(request, pickle.dumps(payload))
        return self._answers(limit)

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: ArrivalArrays) -> list[int]:
        for index, worker in enumerate(self.workers):
            if index in seeds or action is None:
                self._send_reset(index, seeds[index])
            else:
                worker.send(Request.STEP, action[index].tobytes())
        deadline = Deadline(self._limit(self._builds(action, seeds), bool(seeds)))
        obs, reward, terminated, truncated = rows
        for index in range(self.num_envs):
            if self._receive_or_restart(index, seeds, deadline):
                reward[index], terminated[index], truncated[index] = 0.0, False, True
                if self._info is not None:
                    self._info.values[index] = np.nan
                continue
            row = self.workers[index].row
            if self._info is not None:
                self._info.values[index] = row.info
            for key, values in row.obs.items():
                obs[key][index] = values
            reward[index], terminated[index], truncated[index] = row.reward, row.terminated, row.truncated
        return (terminated | truncated).nonzero()[0].tolist()

    def _send_reset(self, index: int, seed: int | None) -> None:
        spare = self._spare_seed(index) if self._settings.restart.attempts else None
        self.workers[index].send(Request.RESET, pickle.dumps((seed, index in self._rebuild, spare)))

    def _limit(self, builds: bool, resets: bool) -> float:
        """Return the time limit in seconds for the answers of all workers to one request.

        Args:
            builds: True if the request builds environments, which takes longer than a step.
            resets: True if the request resets an environment, so that it can be restarted several times.

        Returns:
            The time limit.
        """
        first = first_limit(self.step_timeout)
        return (first if builds else self.step_timeout) + (self._restarts[0].seconds(first) if resets else 0.0)

    def _receive_or_restart(self, index: int, seeds: dict[int, int | None], deadline: Deadline) -> bool:
        """Receive the answer of one worker; return True if the step failed, so that the episode is truncated.

        If the process is lost, it is replaced by a new one.
        """
        while True:
            try:
                answer = self.workers[index].receive(deadline, int(self._episodes.length[index]))
            except EnvironmentLost as lost:
                self._replace(index, lost, cut=index not in seeds)
                if index not in seeds:
                    return True
                self._send_reset(index, seeds[index])
                deadline = Deadline(self._limit(True, True))
                continue
            failures, cut = pickle.loads(answer) if answer else ((), False)
            if failures:
                self._note_failures(index, failures, cut)
            return cut

    def _replace(self, index: int, lost: EnvironmentLost, cut: bool) -> None:
        """Start a new process in place of a lost one; raise EnvironmentLost if no restart is allowed.

        Args:
            index: index of the environment.
            lost: error that reports the loss of the old process.
            cut: True if the process was lost during a step, so that the episode is truncated.
        """
        restarts, text = self._restarts[index], str(lost)
        while True:
            if not restarts.allow():
                raise EnvironmentLost(text + restarts.explain_giving_up()) from None
            self._note_failures(index, [text], cut)
            self.workers[index].close()
            restarts.pause()
            self.workers[index] = Worker(self._settings, index, self.fresh_instance, True, self._info_keys)
            try:
                self.workers[index].receive_spec(Deadline(max(START_LIMIT, self.step_timeout)))
                return
            except (EnvironmentLost, UserError) as again:
                text = str(again)

    def _capture(self) -> State:
        answers = self._ask(Request.CAPTURE, [None] * self.num_envs, self.step_timeout)
        return stack([pickle.loads(answer) for answer in answers])

    def _restore(self, states: list[State]) -> None:
        self._ask(Request.RESTORE, states, max(START_LIMIT, self.step_timeout))

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        # A replay can take as long as the episode took: each step has its own limit.
        longest = max((len(actions) for _, actions in episodes.values()), default=0)
        limit = START_LIMIT + longest * self.step_timeout
        for index, (seed, actions) in episodes.items():
            self.workers[index].send(Request.REPLAY, pickle.dumps((seed, actions)))
        deadline = Deadline(limit)
        for index in episodes:
            self.workers[index].receive(deadline, int(self._episodes.length[index]))
            for key, values in self.workers[index].row.obs.items():
                obs[key][index] = values

    def close(self) -> None:
        """End all worker processes."""
        for worker in self.workers:
            worker.connection.close()  # close all pipes first, so that the workers end at the same time
        for worker in self.workers:
            worker.close()
