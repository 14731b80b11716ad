"""One environment in a process of its own: `python -m rlcore.envs.vector.worker CONNECTION`. Imports no torch.

Answers one request at a time on the connection (a byte that says which, then its arguments) until its pipe closes.
"""

from __future__ import annotations

import enum
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rlcore.envs.make import make
from rlcore.envs.vector.single import SingleEnv
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.spec import EnvSpec


class Request(enum.IntEnum):
    """Requests of a parent to its environment's process."""

    BUILD = 1
    RESET = 2
    STEP = 3
    CAPTURE = 4
    RESTORE = 5
    REPLAY = 6


class Status(enum.IntEnum):
    """First byte of an answer."""

    DONE = 0
    ERROR = 1


def record_dtype(spec: EnvSpec) -> np.dtype:
    """One row of an arrival as a record: obs_0, obs_1, ... in the order of the spec, reward, terminated, truncated."""
    fields: list[Any] = [(f"obs_{i}", part.dtype, part.shape) for i, part in enumerate(spec.obs.values())]
    return np.dtype([*fields, ("reward", "f8"), ("terminated", "?"), ("truncated", "?")])


class RequestHandler:
    """Answers the parent's requests with one environment."""

    def __init__(self) -> None:
        self.env: Any = None
        self.row: Any = None  # a structured array [1]
        self.obs: dict[str, np.ndarray] = {}  # views into the row

    def answer(self, request: bytes) -> bytes:
        """The answer's bytes, without status, to a byte of `Request` and its arguments.

        An EnvironmentFault where the environment misbehaved, a UserError where it cannot be made, a RunError where its
        state cannot be read or does not fit.
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
        self.row["reward"], self.row["terminated"], self.row["truncated"] = 0.0, False, False
        if kind is Request.RESET:
            seed, rebuild = arguments
            self.env.reset(seed, self.obs, 0, rebuild)
        else:
            seed, actions = arguments
            self.env.replay(seed, actions.tolist() if actions.ndim == 1 else list(actions), self.obs, 0)
        return self.row.tobytes()

    def _build(self, settings: Any, index: int, fresh_instance: bool) -> bytes:
        self.env = SingleEnv(lambda: make(settings), index, fresh_instance)
        spec = self.env.spec
        self.row = np.zeros(1, record_dtype(spec))
        self.obs = {key: self.row[f"obs_{i}"] for i, key in enumerate(spec.obs)}
        return pickle.dumps((spec.to_json(), self.env.bounds))

    def _step(self, payload: bytes) -> bytes:
        spec = self.env.spec.action
        action = np.frombuffer(payload, spec.dtype).reshape(spec.shape).copy()
        result = self.env.step(action if spec.shape else int(action), self.obs, 0)
        self.row["reward"], self.row["terminated"], self.row["truncated"] = result
        return self.row.tobytes()


def serve(connection: Connection) -> None:
    """Answer until the pipe closes; an error is an answer too."""
    handler = RequestHandler()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        try:
            status, answer = Status.DONE, handler.answer(request)
        except (UserError, EnvironmentFault, RunError) as error:
            status, answer = Status.ERROR, pickle.dumps((type(error).__name__, str(error)))
        try:
            connection.send_bytes(bytes([status]) + answer)
        except ConnectionError:
            return


def main() -> None:
    """Entry point of the worker process."""
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
