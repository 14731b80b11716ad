"""Trainer process, which trains one run. Its parent process controls it through pipes, with one JSON message per line.

    python -m rlcore.train.server RUN_DIRECTORY

Commands on stdin:  {"command": "begin" | "advance" | "checkpoint" | "evaluate" | "stop"}
                    {"command": "end", "status": ..., "reason": ...} calls the callbacks at the end of training
                    {"command": "call", "function": "module.name", "arguments": [...]}
                    before `begin`, only `call` is allowed; the process has then imported all modules, but read only
                    the config of the run
Events on stdout:   imported (once, before the first command is read)
                    ready {policy_steps, total_steps, callbacks}
                    progress {policy_steps, total_steps, updates, return, elapsed}
                    boundary {policy_steps, due, done, reason} · checkpoint {path, policy_steps, digest}
                    evaluation {policy_steps, final, greedy, ...} · stopped · interrupted {policy_steps, path, lost}
                    ended (after `end`)
                    doing {sentence} (before long tasks, and for warnings) · error {sentence, kind, exit}
                    work {doing, done, total, unit} (about every second during evaluations and long updates)
                    called {result} or failed {error, sentence} after a `call`; before that, the events that the
                    function sends, such as emitted {kind, facts} (flows.runs.with_torch)
                    alive (every few seconds, at any time)

Only the config determines the boundaries, so the parent cannot influence the result. After SIGTERM, SIGINT or SIGHUP
the trainer finishes the iteration, writes a checkpoint and exits with code 130. If the remaining gradient steps of the
iteration would take long, it stops between two of them without a checkpoint, because only complete iterations can be
saved. Further signals are ignored: service managers send them to every process, and so does the parent, which kills a
trainer that takes too long. If the parent ends (end of stdin), the trainer exits.
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
from rlcore.errors import CallbackError, EnvironmentFault, RunError, UserError, first_line, machine_fault
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history
from rlcore.system.imports import large_imports, without_compiler
from rlcore.system.printable import log_handler, print_traceback
from rlcore.train.calls import ProgressTimer, call
from rlcore.user_code import explain_exit

ALIVE_EVERY = 2.0  # seconds
SHOW_EVERY = 0.1  # seconds between two progress events; an iteration of A2C takes only a millisecond
LONG_UPDATE = 10.0  # duration in seconds from which the gradient steps of one iteration get progress events
# Loggers whose messages are sent to the parent: compilation, full disk, endless episodes, unknown metrics.
FORWARDED = (
    "rlcore.compiled.package",
    "rlcore.compiled.machine_code",
    "rlcore.compiled.when_to_compile",
    "rlcore.store.retry",
    "rlcore.evaluation.evaluation",
    "rlcore.train.info_check",
    "rlcore.train.metrics",
    "rlcore.train.resource_check",
    "rlcore.train.run_log",
    "rlcore.train.run_progress",
    "rlcore.train.run_trainer",
    "rlcore.train.stop_conditions",
)


class Interrupted(BaseException):
    """Raised after a signal if the current task can be aborted."""


class TrainerServer:
    """Server that trains one run on behalf of its parent process.

    It reads commands from stdin and writes events to `output`, as one line of JSON each. The docstring of the module
    lists the commands and events.

    Args:
        run: run directory. At the command `begin`, it must contain config.yaml and env_card.json.
        output: stream to which only events are written.
    """

    def __init__(self, run: RunDirectory, output: Any) -> None:
        self.run, self.output = run, output
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.trainer: Any = None
        self.interrupted = False
        self.deferring = False  # True while signals raise no exception; the current task checks `interrupted`
        self.lost: str | None = None  # message about an iteration that was interrupted
        self._output_lock = threading.Lock()
        self.ended = False  # True after the callbacks were called at the end of training
        self._shown = 0.0  # time of the last progress event

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        with self._output_lock:
            self.output.write(json.dumps({"event": event, **fields}) + "\n")
            self.output.flush()

    def listen(self) -> None:
        """Read commands until stdin ends, which means that the parent has ended; then exit."""
        for line in sys.stdin:
            self.commands.put(json.loads(line))
        os._exit(1)

    def send_alive(self) -> None:
        """Send `alive` events regularly. They stop if an environment blocks the interpreter lock forever."""
        while True:
            self.send("alive")
            time.sleep(ALIVE_EVERY)

    def on_signal(self, number: int, frame: Any) -> None:
        """Interrupt training at the next point at which it can be saved."""
        if self.interrupted:
            return
        self.interrupted = True
        if self.trainer is not None:
            self.trainer.interrupted = True
        if not self.deferring:
            raise Interrupted

    @contextmanager
    def defer_signals(self) -> Iterator[None]:
        """Context manager for code that a signal must not abort, such as writing a checkpoint.

        If a signal arrives inside the `with` block, `Interrupted` is raised at the end of the block.
        """
        self.deferring = True
        yield
        self.deferring = False
        if self.interrupted:
            raise Interrupted

    def wait_for_begin(self) -> bool:
        """Import slow modules, then wait for the command `begin` or `stop`, and execute `call` commands until then.

        Return True after `begin`, and False after `stop`.
        """
        load(self.run.read_config()["algo"]["name"])
        self.send("imported")
        while (request := self.commands.get())["command"] == "call":
            call(request["function"], request["arguments"], self.send)
        if request["command"] == "begin":
            return True
        self.send("stopped")
        return False

    def serve(self) -> int:
        """Create the `RunTrainer`, execute commands until `stop`, and return the exit code."""
        from rlcore.train.run_trainer import RunTrainer

        self.trainer = RunTrainer(self.run)
        total, callbacks = self.trainer.training.end, bool(self.trainer.callbacks)
        self.send("ready", policy_steps=self.trainer.policy_steps, total_steps=total, callbacks=callbacks)
        while True:
            request = self.commands.get()
            command = request["command"]
            if command == "stop":
                self.trainer.close()
                self.send("stopped")
                return 0
            if command == "advance":
                self._advance()
            elif command == "checkpoint":
                with self.defer_signals():
                    saved = self.trainer.save()
                self.send("checkpoint", **saved)
            elif command == "evaluate":
                self.send("evaluation", **self.trainer.evaluate(self._work("evaluation", "episodes")))
            elif command == "end":
                with self.defer_signals():
                    self.ended = True
                    self.trainer.end(request["status"], request["reason"])
                self.send("ended")
            elif command == "call":
                call(request["function"], request["arguments"], self.send)

    def _work(self, doing: str, unit: str) -> Callable[[int, int], None]:
        """Return a progress callback (done, total) that sends `work` events at the rate of a `ProgressTimer`."""
        timer = ProgressTimer()

        def on_progress(done: int, total: int) -> None:
            if timer.due():
                self.send("work", doing=doing, done=done, total=total, unit=unit)

        return on_progress

    def _update(self) -> Callable[[int, int], None]:
        """Return a callback for `RunTrainer.advance`, which is called before each gradient step of an iteration.

        If the gradient steps of the iteration take long in total, the callback sends `work` events. This happens, for
        example, in the first iteration with `algo.per_rank_pretrain_steps`. If a signal has arrived and the remaining
        gradient steps would take long, the callback raises `Interrupted`.
        """
        begun, work = 0.0, self._work("update", "gradient steps")

        def on_batch(done: int, total: int) -> None:
            nonlocal begun
            if done == 0:
                begun = time.monotonic()
                return
            each = (time.monotonic() - begun) / done
            if self.interrupted and (left := each * (total - done)) >= LONG_UPDATE:
                self.lost = self.trainer.describe_lost_work(done, total, left)
                raise Interrupted
            if each * total >= LONG_UPDATE:
                work(done, total)

        return on_batch

    def _advance(self) -> None:
        """Train until an evaluation or checkpoint is due, or to the end of the iteration in which a signal arrives."""
        last: dict[str, Any] = {}

        def on_progress(progress: dict[str, Any]) -> None:
            nonlocal last
            last = progress
            if time.monotonic() - self._shown >= SHOW_EVERY:
                self._shown, last = time.monotonic(), {}
                self.send("progress", **progress)

        with self.defer_signals():
            boundary = self.trainer.advance(on_progress, self._update())
            if last:  # progress at a boundary is always sent
                self.send("progress", **last)
        self.send("boundary", **asdict(boundary))

    def interrupt(self) -> int:
        """Save the state after a signal if possible, and return exit code 130."""
        self.interrupted = self.deferring = True
        path = None
        if not self.lost and self.trainer is not None and self.trainer.policy_steps and self.trainer.savable:
            path = self.trainer.save(call=False)["path"]
        self._end("interrupted", "signal")
        if self.trainer is not None and history(self.run.events).ended is None:  # do not end a finished run again
            self.trainer.events.append(
                "end", policy_steps=self.trainer.policy_steps, status="interrupted", reason="signal"
            )
        policy_steps = self.trainer.policy_steps if self.trainer else 0
        self.send("interrupted", policy_steps=policy_steps, path=path, lost=self.lost)
        return 130

    def main(self) -> int:
        """Run until `stop`, a signal or an error; return the exit code. Errors are sent as an event."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        for job in (self.listen, self.send_alive):
            threading.Thread(target=job, daemon=True).start()
        try:
            try:
                if not self.wait_for_begin():
                    return 0
                with self.run.writing():
                    try:
                        return self.serve()
                    except Interrupted:
                        return self.interrupt()
                    except CallbackError as error:
                        self.interrupted = self.deferring = True
                        print_traceback()
                        raise CallbackError(f"{error}; {self._save_after(error)}") from error
            except Interrupted:  # before the trainer was created
                return self.interrupt()
        except UserError as error:
            self.send("error", sentence=str(error), kind="UserError", exit=2)
            return 2
        except BaseException as raised:
            if not isinstance(raised, Exception):  # the parent expects an error message for every exception
                raised = EnvironmentFault(explain_exit(raised))
            error = machine_fault(raised) or raised
            if not isinstance(raised, RunError):
                with contextlib.suppress(OSError):  # the log file may be on a full disk, which may be the error itself
                    print_traceback()
            sentence = str(error) if isinstance(error, RunError) else self._describe(error)
            self._end("failed", sentence)
            self.send("error", sentence=sentence, kind=type(error).__name__, exit=1)
            return 1

    def _save_after(self, error: CallbackError) -> str:
        """Save the state of training after the failure of a callback; return a phrase that says what was saved."""
        where = f"the traceback is in {self.run.log}"
        if self.trainer is None or not self.trainer.policy_steps or not self.trainer.savable:
            return where
        self.trainer.callbacks.failed = True
        try:
            self.trainer.save(call=False)
        except Exception as other:  # for example the state of the callback that failed
            print_traceback()
            return f"the state of training could not be saved ({first_line(other)}), {where}"
        return f"training is saved at policy step {self.trainer.policy_steps:,}, {where}"

    def _end(self, status: str, reason: str) -> None:
        """Call the callbacks after an interruption or a failure; their own failures are only written to run.log."""
        if self.trainer is not None and not self.ended and history(self.run.events).ended is None:
            self.ended = True
            try:
                self.trainer.end(status, reason)
            except RunError:
                print_traceback()

    def _describe(self, error: Exception) -> str:
        """Return the message of an unexpected exception, with file and line."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {first_line(error)}"
        return f"{message} ({Path(last.filename).name}, line {last.lineno}; the traceback is in {self.run.log})"


class Announcer(logging.Handler):
    """Logging handler that sends log messages to the parent of the trainer process, as events `doing`.

    Args:
        trainer: server that sends the events.
    """

    def __init__(self, trainer: TrainerServer) -> None:
        super().__init__()
        self.trainer = trainer

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log message to the parent process.

        Messages that were logged with `extra=DETAIL` are not sent; they are only in run.log.
        """
        if not hasattr(record, "detail"):
            self.trainer.send("doing", sentence=record.getMessage())


def load(algorithm: str = "") -> None:
    """Import all modules that training needs, such as torch and the algorithm.

    Source files that are edited after the import do not affect this process.

    Args:
        algorithm: name of the algorithm to import; "" for all built-in ones.
    """
    with large_imports("torch"):
        with contextlib.suppress(ImportError, AttributeError), without_compiler():
            import lightning_fabric
        import lightning_fabric  # noqa: F401 - succeeds if the import above failed without the compiler

        import rlcore.train.run_trainer  # noqa: F401

        for name, module in ALGORITHMS.items():
            if algorithm in ("", name):
                _ = module.Config, module.build


def main() -> None:
    """Run the process. Reserve stdout for the protocol; redirect all other output to stderr (the run's log)."""
    gc.set_threshold(
        20_000, 20, 20
    )  # tensors of a rollout form no cycles, and looking for cycles takes 5 % of the time
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, handlers=[log_handler("%(asctime)s %(levelname)s %(message)s")])
    trainer = TrainerServer(RunDirectory(sys.argv[1]), output)
    for name in FORWARDED:
        logging.getLogger(name).addHandler(Announcer(trainer))
    code = trainer.main()
    with contextlib.suppress(OSError):  # the disk of the log may be full, which does not change the exit code
        sys.stderr.flush()
    os._exit(code)  # do not wait for threads of environments and libraries


if __name__ == "__main__":
    main()
