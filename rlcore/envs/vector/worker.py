"""Worker process of one environment: `python -m rlcore.envs.vector.worker CONNECTION MEMORY`.

The process does not import torch.

The worker answers one request at a time until its pipe closes. A request consists of a byte of `Request` and the
arguments. The worker writes the results of a step (observation, reward, terminated and truncated) to anonymous memory
that it shares with the parent process. The answer to a step then only signals that the results are complete.

Arguments of the command: CONNECTION is the file descriptor of the pipe, MEMORY that of the shared memory.
"""

from __future__ import annotations

import enum
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rlcore.envs.make import make
from rlcore.envs.vector.single import SingleEnv
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.spec import EnvSpec
from rlcore.user_code import explain_exit


class Request(enum.IntEnum):
    """Kind of a request of the parent process, sent as the first byte of the request."""

    BUILD = 1
    RESET = 2
    STEP = 3
    CAPTURE = 4
    RESTORE = 5
    REPLAY = 6


class Status(enum.IntEnum):
    """Status of an answer of the worker, sent as the first byte of the answer."""

    DONE = 0
    ERROR = 1


def record_dtype(spec: EnvSpec, infos: int) -> np.dtype:
    """Return the NumPy record dtype of the results of one step.

    The fields are obs_0, obs_1, … for the observation keys in the order of the spec, then reward, terminated, truncated
    and info, which contains one number for each of the `infos` entries of `env.info_keys`.
    """
    fields: list[Any] = [(f"obs_{i}", part.dtype, part.shape) for i, part in enumerate(spec.obs.values())]
    results = [("reward", "f8"), ("terminated", "?"), ("truncated", "?"), ("info", "f8", (infos,))]
    return np.dtype([*fields, *results], align=True)


class SharedRow:
    """Results of the last step of one environment, as arrays in shared memory that can be read and written.

    Args:
        spec: spec of the environment.
        memory: file descriptor of the memory, which is resized so that the results fit.
        infos: K, number of entries of `env.info_keys`.

    Attributes:
        obs: observation key -> [*shape].
        reward: [] float64.
        terminated: [] bool.
        truncated: [] bool.
        info: [K] float64, the values of `env.info_keys`; NaN = not in `info`.
    """

    obs: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: np.ndarray

    def __init__(self, spec: EnvSpec, memory: int, infos: int) -> None:
        record = record_dtype(spec, infos)
        os.ftruncate(memory, record.itemsize)
        row: Any = np.frombuffer(mmap.mmap(memory, record.itemsize), record, 1)
        self.obs = {key: row[f"obs_{i}"][0, ...] for i, key in enumerate(spec.obs)}
        self.reward, self.terminated, self.truncated = (
            row[name].reshape(()) for name in ("reward", "terminated", "truncated")
        )
        self.info = row["info"][0]


class RequestHandler:
    """Handler of the parent's requests for one environment.

    The results of steps are written to shared memory; `memory` is the file descriptor of this memory.
    """

    def __init__(self, memory: int) -> None:
        self.env: Any = None
        self.memory = memory
        self.row: Any = None
        self.obs: dict[str, np.ndarray] = {}  # views into the row, [1, ...]

    def answer(self, request: bytes) -> bytes:
        """Return the bytes of the answer to a request, without the status byte.

        Raise UserError if the environment cannot be created. Raise EnvironmentFault if the environment fails or returns
        an invalid value. Raise RunError if the state of the environment cannot be read, or if a state to restore was
        saved from another environment.
        """
        kind, payload = Request(request[0]), request[1:]
        if kind is Request.STEP:
            return self._step(payload)
        arguments = pickle.loads(payload)
        if kind is Request.BUILD:
            return self._build(*arguments)
        if kind is Request.CAPTURE:
            return pickle.dumps(self.env.capture())
        if kind is Request.RESTORE:
            self.env.restore(arguments)
            return b""
        self._put(0.0, False, False)
        if kind is Request.RESET:
            seed, rebuild, spare = arguments
            self.env.reset(seed, self.obs, 0, rebuild, spare)
        else:
            seed, actions = arguments
            self.env.replay(seed, actions.tolist() if actions.ndim == 1 else list(actions), self.obs, 0)
        return self._failures()

    def _build(self, settings: Any, index: int, fresh_instance: bool, lost: bool, info_keys: Sequence[str]) -> bytes:
        self.env = SingleEnv(lambda: make(settings), index, fresh_instance, settings.restart, lost, info_keys)
        spec = self.env.spec
        self.row = SharedRow(spec, self.memory, len(info_keys))
        self.env.info = self.row.info
        self.obs = {key: values[None] for key, values in self.row.obs.items()}
        return pickle.dumps((spec.to_json(), self.env.bounds))

    def _step(self, payload: bytes) -> bytes:
        spec = self.env.spec.action
        action = np.frombuffer(payload, spec.dtype).reshape(spec.shape).copy()
        self._put(*self.env.step(action if spec.shape else int(action), self.obs, 0))
        return self._failures()

    def _put(self, reward: float, terminated: bool, truncated: bool) -> None:
        self.row.reward[...], self.row.terminated[...], self.row.truncated[...] = reward, terminated, truncated

    def _failures(self) -> bytes:
        """Return the failures of the environment since the last answer, pickled as (failures, broken).

        `failures` are the messages. `broken` is True if the next reset must create a new environment. If there was no
        failure, return b"".
        """
        if not self.env.failures:
            return b""
        failures, self.env.failures = self.env.failures, []
        return pickle.dumps((failures, self.env.broken))


def serve(connection: Connection, memory: int) -> None:
    """Answer requests until the pipe closes.

    If a request raises UserError or RunError, the answer has the status `ERROR` and the text of the error.
    """
    handler = RequestHandler(memory)
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        try:
            status, answer = Status.DONE, handler.answer(request)
        except BaseException as raised:
            error = raised if isinstance(raised, Exception) else EnvironmentFault(explain_exit(raised))
            if not isinstance(error, (UserError, RunError)):
                raise
            status, answer = Status.ERROR, pickle.dumps((type(error).__name__, str(error)))
        try:
            connection.send_bytes(bytes([status]) + answer)
        except ConnectionError:
            return


def main() -> None:
    """Entry point of the worker process."""
    # Ctrl-C reaches the whole process group; only the parent handles it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
