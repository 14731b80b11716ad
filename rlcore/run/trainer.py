"""The trainer process: owns the loop of one run and is driven over its pipes, one JSON line a message.

    python -m rlcore.run.trainer RUN_DIRECTORY

Commands on stdin:  {"command": "advance" | "checkpoint" | "evaluate" | "finish" | "stop"}
Events on stdout:   ready {env_steps, total_steps} · progress {env_steps, return, elapsed} (while advancing)
                    boundary {env_steps, due, done, reason} · checkpoint {path, env_steps, digest}
                    evaluation {env_steps, final, greedy, ...} · stopped · interrupted {env_steps, path}
                    error {sentence, exit}

Boundaries come from the config alone; the caller decides nothing that moves a bit. SIGTERM or SIGINT: the iteration
is finished, a checkpoint written, exit 130; a second signal exits at once. When the parent is gone (stdin ends), so is
this process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from typing import Any

from rlcore.errors import RunError, UserError
from rlcore.run.directory import RunDirectory


class Interrupted(BaseException):
    """A signal arrived while nothing was being trained."""


class Trainer:
    """One run's session behind the line protocol.

    Args:
        run: a prepared run directory.
        output: where events go; nothing else is ever written there.
    """

    def __init__(self, run: RunDirectory, output: Any) -> None:
        self.run, self.output = run, output
        self.commands: queue.Queue[str | None] = queue.Queue()
        self.session: Any = None
        self.training = False
        self.signals = 0

    def say(self, event: str, **fields: Any) -> None:
        """Write one event."""
        self.output.write(json.dumps({"event": event, **fields}) + "\n")
        self.output.flush()

    def listen(self) -> None:
        """Read commands until stdin ends; then the parent is gone and this process must not outlive it."""
        for line in sys.stdin:
            self.commands.put(json.loads(line)["command"])
        os._exit(1)

    def on_signal(self, number: int, frame: Any) -> None:
        """First signal: end well. Second: end."""
        self.signals += 1
        if self.signals > 1:
            os._exit(130)
        if self.training:
            self.session.interrupted = True
        else:
            raise Interrupted

    def serve(self) -> int:
        """Build the session and answer commands; returns the exit code."""
        from rlcore.run.session import Session

        self.session = Session(self.run)
        self.say("ready", env_steps=self.session.env_steps, total_steps=self.session.plan.total_steps)
        while True:
            command = self.commands.get()
            if command == "stop":
                self.session.close()
                self.say("stopped")
                return 0
            if command == "advance":
                if self._advance():
                    raise Interrupted
            elif command == "checkpoint":
                self.say("checkpoint", **self.session.save())
            elif command == "evaluate":
                self.say("evaluation", **self.session.evaluate())
            elif command == "finish":
                from rlcore.run.judge import final_evaluation

                self.say("evaluation", **final_evaluation(self.run))

    def _advance(self) -> bool:
        """Train to the next boundary; True when a signal asked to end."""
        self.training = True
        try:
            boundary = self.session.advance(lambda progress: self.say("progress", **progress))
        finally:
            self.training = False
        if self.session.interrupted:
            return True
        self.say("boundary", **asdict(boundary))
        return False

    def interrupt(self) -> int:
        """Make the state durable after a signal; exit code 130."""
        path = None
        if self.session is not None and self.session.env_steps and self.session.savable:
            path = self.session.save()["path"]
        if self.session is not None:
            self.session.events.append("end", env_steps=self.session.env_steps, status="interrupted", reason="signal")
        self.say("interrupted", env_steps=self.session.env_steps if self.session else 0, path=path)
        return 130

    def main(self) -> int:
        """Serve until told to stop; every end has its exit code and its sentence."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        threading.Thread(target=self.listen, daemon=True).start()
        try:
            try:
                with self.run.writing():
                    return self._guarded()
            except Interrupted:  # before the session was there
                return self.interrupt()
        except UserError as error:
            self.say("error", sentence=str(error), exit=2)
            return 2
        except Exception as error:
            if not isinstance(error, RunError):
                with contextlib.suppress(OSError):  # the log may lie on the full disk that this is about
                    traceback.print_exc()
            sentence = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            self.say("error", sentence=sentence, exit=1)
            return 1

    def _guarded(self) -> int:
        try:
            return self.serve()
        except Interrupted:
            return self.interrupt()


def main() -> None:
    """Entry point: keep stdout for the protocol, send all other output to stderr (the run's log)."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    code = Trainer(RunDirectory(sys.argv[1]), output).main()
    with contextlib.suppress(OSError):  # the parent is gone, the log's disk is full: the exit code is the same
        output.close()
        sys.stderr.flush()
    os._exit(code)  # environments and threads of libraries must not keep a finished trainer alive


if __name__ == "__main__":
    main()
