"""The trainer process: owns the loop of one run and is driven over its pipes, one JSON line a message.

    python -m rlcore.train.trainer RUN_DIRECTORY

Commands on stdin:  {"command": "begin" | "advance" | "checkpoint" | "evaluate" | "stop"}
                    {"command": "call", "function": "module.name", "arguments": [...]}
                    only `call` may come before `begin`: until then it has imported what it needs, and read nothing of
                    the run
Events on stdout:   ready {policy_steps, total_steps} · progress {policy_steps, total_steps, updates, return, elapsed}
                    boundary {policy_steps, due, done, reason} · checkpoint {path, policy_steps, digest}
                    evaluation {policy_steps, final, greedy, ...} · stopped · interrupted {policy_steps, path, lost}
                    doing {sentence} (before what takes long, and warnings) · error {sentence, kind, exit}
                    work {doing, done, total, unit} (about every second of an evaluation, or of a long update)
                    called {result} or failed {error, sentence}, and before them what the function said
                    alive (every few seconds, whatever else goes on)

Boundaries come from the config alone; the caller decides nothing that moves a bit. SIGTERM, SIGINT or SIGHUP: the
iteration is finished, a checkpoint written, exit 130. An iteration whose gradient steps would take long is left
between two of them, without a checkpoint: only its end is a state to go on from. Further signals change nothing: a
service manager sends them to every process, and so does the parent, which kills a trainer that takes too long. When the
parent is gone (stdin ends), so is this process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlcore.algorithms import ALGORITHMS
from rlcore.errors import EnvironmentFault, RunError, UserError, first_line, machine_fault
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history
from rlcore.system.imports import large_imports, without_compiler
from rlcore.system.printable import log_handler, print_traceback
from rlcore.train.calls import ProgressTimer, call
from rlcore.user_code import explain_exit

ALIVE_EVERY = 2.0  # seconds
SHOW_EVERY = 0.1  # seconds between two lines of progress: an iteration of A2C takes a millisecond
LONG_UPDATE = 10.0  # seconds of an iteration's gradient steps, from which on these have a progress of their own
# Loggers whose messages the driver is told: a minute of compiling, a full disk, episodes without end, first weights.
TOLD = (
    "rlcore.compiled.package",
    "rlcore.compiled.machine_code",
    "rlcore.compiled.when_to_compile",
    "rlcore.store.retry",
    "rlcore.evaluation.evaluation",
    "rlcore.train.resource_check",
    "rlcore.train.session",
)


class Interrupted(BaseException):
    """A signal arrived, and what is being done may be left as it is."""


class Trainer:
    """One run's session behind the line protocol.

    Args:
        run: a prepared run directory.
        output: where events go; nothing else is ever written there.
    """

    def __init__(self, run: RunDirectory, output: Any) -> None:
        self.run, self.output = run, output
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.session: Any = None
        self.interrupted = False
        self.careful = False  # what is being done must not be cut by an exception: it looks at `interrupted` itself
        self.lost: str | None = None  # of an iteration that was left in its middle: a sentence about it
        self._voice = threading.Lock()
        self._shown = 0.0  # when progress was last told

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        with self._voice:
            self.output.write(json.dumps({"event": event, **fields}) + "\n")
            self.output.flush()

    def listen(self) -> None:
        """Read commands until stdin ends; then the parent is gone and this process must not outlive it."""
        for line in sys.stdin:
            self.commands.put(json.loads(line))
        os._exit(1)

    def live(self) -> None:
        """Say that this process is alive: an engine that holds the interpreter lock for ever silences it."""
        while True:
            self.send("alive")
            time.sleep(ALIVE_EVERY)

    def on_signal(self, number: int, frame: Any) -> None:
        """End well."""
        if self.interrupted:
            return
        self.interrupted = True
        if self.session is not None:
            self.session.interrupted = True
        if not self.careful:
            raise Interrupted

    @contextmanager
    def carefully(self) -> Iterator[None]:
        """Put off the end that a signal asks for until here; then `Interrupted` is raised."""
        self.careful = True
        yield
        self.careful = False
        if self.interrupted:
            raise Interrupted

    def wait_for_begin(self) -> bool:
        """Import what takes seconds, then wait for the command to begin; False when it is to stop instead."""
        load(self.run.read_config()["algo"]["name"])
        while (asked := self.commands.get())["command"] == "call":
            call(asked["function"], asked["arguments"], self.send)
        if asked["command"] == "begin":
            return True
        self.send("stopped")
        return False

    def serve(self) -> int:
        """Build the session and answer commands; returns the exit code."""
        from rlcore.train.session import Session

        self.session = Session(self.run)
        self.send("ready", policy_steps=self.session.policy_steps, total_steps=self.session.training.budget)
        while True:
            asked = self.commands.get()
            command = asked["command"]
            if command == "stop":
                self.session.close()
                self.send("stopped")
                return 0
            if command == "advance":
                self._advance()
            elif command == "checkpoint":
                with self.carefully():
                    saved = self.session.save()
                self.send("checkpoint", **saved)
            elif command == "evaluate":
                self.send("evaluation", **self.session.evaluate(self._work("evaluation", "episodes")))
            elif command == "call":
                call(asked["function"], asked["arguments"], self.send)

    def _work(self, doing: str, unit: str) -> Callable[[int, int], None]:
        """Callback of long work, which takes how much is done and how much there is; said every now and then."""
        pace = ProgressTimer()

        def on_progress(done: int, total: int) -> None:
            if pace.due():
                self.send("work", doing=doing, done=done, total=total, unit=unit)

        return on_progress

    def _update(self) -> Callable[[int, int], None]:
        """Callback of the batches of an update, which says where one that takes long is, as that of `pretrain`.

        It raises `Interrupted` where a signal came and the rest would take long.
        """
        begun, work = 0.0, self._work("update", "gradient steps")

        def on_batch(done: int, total: int) -> None:
            nonlocal begun
            if done == 0:
                begun = time.monotonic()
                return
            each = (time.monotonic() - begun) / done
            if self.interrupted and (left := each * (total - done)) >= LONG_UPDATE:
                self.lost = self.session.describe_lost_work(done, total, left)
                raise Interrupted
            if each * total >= LONG_UPDATE:
                work(done, total)

        return on_batch

    def _advance(self) -> None:
        """Train to the next boundary, or to the end of the iteration in which a signal comes."""
        last: dict[str, Any] = {}

        def on_progress(progress: dict[str, Any]) -> None:
            nonlocal last
            last = progress
            if time.monotonic() - self._shown >= SHOW_EVERY:
                self._shown, last = time.monotonic(), {}
                self.send("progress", **progress)

        with self.carefully():
            boundary = self.session.advance(on_progress, self._update())
            if last:  # where it stands at a boundary is always told
                self.send("progress", **last)
        self.send("boundary", **asdict(boundary))

    def interrupt(self) -> int:
        """Make the state durable after a signal; exit code 130."""
        self.interrupted = self.careful = True
        path = None
        if not self.lost and self.session is not None and self.session.policy_steps and self.session.savable:
            path = self.session.save()["path"]
        if self.session is not None and history(self.run.events).ended is None:  # what has ended stays so
            self.session.events.append(
                "end", policy_steps=self.session.policy_steps, status="interrupted", reason="signal"
            )
        here = self.session.policy_steps if self.session else 0
        self.send("interrupted", policy_steps=here, path=path, lost=self.lost)
        return 130

    def main(self) -> int:
        """Serve until told to stop; every end has its exit code and its sentence."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        for job in (self.listen, self.live):
            threading.Thread(target=job, daemon=True).start()
        try:
            try:
                if not self.wait_for_begin():
                    return 0
                with self.run.writing():
                    return self._guard()
            except Interrupted:  # before the session was there
                return self.interrupt()
        except UserError as error:
            self.send("error", sentence=str(error), kind="UserError", exit=2)
            return 2
        except BaseException as raised:
            if not isinstance(raised, Exception):  # the driver waits for a sentence, whatever ends this process
                raised = EnvironmentFault(explain_exit(raised))
            error = machine_fault(raised) or raised
            if not isinstance(raised, RunError):
                with contextlib.suppress(OSError):  # the log may lie on the full disk that this is about
                    print_traceback()
            sentence = str(error) if isinstance(error, RunError) else self._where(error)
            self.send("error", sentence=sentence, kind=type(error).__name__, exit=1)
            return 1

    def _where(self, error: Exception) -> str:
        """A fault of code, an algorithm's or an environment's say, with the line it was met in."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {first_line(error)}"
        return f"{told} ({Path(last.filename).name}, line {last.lineno}; the traceback is in {self.run.log})"

    def _guard(self) -> int:
        try:
            return self.serve()
        except Interrupted:
            return self.interrupt()


class Announcer(logging.Handler):
    """Tells the driver what a logger says.

    Args:
        trainer: whose driver.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one message on, unless it is a detail for run.log."""
        if not hasattr(record, "detail"):
            self.trainer.send("doing", sentence=record.getMessage())


def load(algorithm: str = "") -> None:
    """Import what takes seconds: what is edited later does not run in this process.

    Args:
        algorithm: the one that is wanted; "" = any that is built in.
    """
    with large_imports("torch"):
        with contextlib.suppress(ImportError, AttributeError), without_compiler():
            import lightning_fabric
        import lightning_fabric  # noqa: F401 - one that wants more of the compiler gets it here

        import rlcore.train.session  # noqa: F401

        for name, module in ALGORITHMS.items():
            if algorithm in ("", name):
                _ = module.Config, module.build


def main() -> None:
    """Entry point: keep stdout for the protocol, send all other output to stderr (the run's log)."""
    gc.set_threshold(20_000, 20, 20)  # a rollout's tensors are gone by themselves: to look for circles takes 5 %
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, handlers=[log_handler("%(asctime)s %(levelname)s %(message)s")])
    trainer = Trainer(RunDirectory(sys.argv[1]), output)
    for name in TOLD:
        logging.getLogger(name).addHandler(Announcer(trainer))
    code = trainer.main()
    with contextlib.suppress(OSError):  # the log's disk may be full: the exit code is the same
        sys.stderr.flush()
    os._exit(code)  # environments and threads of libraries must not keep a finished trainer alive


if __name__ == "__main__":
    main()
