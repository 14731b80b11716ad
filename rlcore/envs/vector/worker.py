"""One environment in a process of its own: `python -m rlcore.envs.vector.worker CONNECTION`. Imports no torch.

Answers one question at a time on the connection, a byte for the question and then its arguments, until its pipe closes.
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
from rlcore.envs.vector.lane import Lane
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.spec import EnvSpec


class Op(enum.IntEnum):
    """What a parent may ask."""

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


class Desk:
    """Answers the parent's questions with one `Lane`."""

    def __init__(self) -> None:
        self.lane: Any = None
        self.row: Any = None  # a structured array [1]
        self.obs: dict[str, np.ndarray] = {}

    def answer(self, question: bytes) -> bytes:
        """The answer to one question.

        Args:
            question: a byte of `Op`, then the arguments.

        Returns:
            The answer's bytes, without status.

        Raises:
            EnvironmentFault: the environment misbehaved.
            UserError: it cannot be made.
            RunError: its state cannot be read or does not fit.
        """
        op, payload = Op(question[0]), question[1:]
        if op is Op.STEP:
            return self._step(payload)
        arguments = pickle.loads(payload)
        if op is Op.BUILD:
            return self._build(*arguments)
        if op is Op.CAPTURE:
            return pickle.dumps(self.lane.capture())
        if op is Op.RESTORE:
            self.lane.restore(arguments)
            return b""
        self._clear()
        if op is Op.RESET:
            seed, rebuild = arguments
            self.lane.reset(seed, self.obs, 0, rebuild)
        else:
            seed, actions = arguments
            self.lane.replay(seed, actions.tolist() if actions.ndim == 1 else list(actions), self.obs, 0)
        return self.row.tobytes()

    def _build(self, settings: Any, index: int, fresh_instance: bool) -> bytes:
        self.lane = Lane(lambda: make(settings), index, fresh_instance)
        spec = self.lane.spec
        self.row = np.zeros(1, record_dtype(spec))
        self.obs = {key: self.row[f"obs_{i}"] for i, key in enumerate(spec.obs)}
        return pickle.dumps((spec.to_json(), self.lane.bounds))

    def _clear(self) -> None:
        self.row["reward"], self.row["terminated"], self.row["truncated"] = 0.0, False, False

    def _step(self, payload: bytes) -> bytes:
        spec = self.lane.spec.action
        action = np.frombuffer(payload, spec.dtype).reshape(spec.shape).copy()
        taken = self.lane.step(action if spec.shape else int(action), self.obs, 0)
        self.row["reward"], self.row["terminated"], self.row["truncated"] = taken
        return self.row.tobytes()


def serve(connection: Connection) -> None:
    """Answer until the pipe closes; what goes wrong is an answer too."""
    desk = Desk()
    while True:
        try:
            question = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        try:
            status, answer = Status.DONE, desk.answer(question)
        except (UserError, EnvironmentFault, RunError) as error:
            status, answer = Status.ERROR, pickle.dumps((type(error).__name__, str(error)))
        try:
            connection.send_bytes(bytes([status]) + answer)
        except (BrokenPipeError, ConnectionError):
            return


def main() -> None:
    """Entry point of the worker process."""
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
