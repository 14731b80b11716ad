"""Control of the trainer process of a run by its parent process.

The command `advance` trains to the next point at which a checkpoint or an evaluation is due, called a boundary.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from flows.process.signals import TrainingInterrupted, time_left
from flows.runs.listeners import announce, emit
from flows.runs.warm import TRAINER, start_warm
from rlcore.errors import DiskFault, EnvironmentFault, EnvironmentLost, OutOfMemory, RunError, UserError, exit_error
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import is_stopped
from rlcore.train.boundary import Boundary
from rlcore.train.calls import unpack

GRACE = 20.0  # seconds a trainer gets to finish its iteration and write a checkpoint
LOOK_EVERY = 1.0  # seconds
SILENCE = 30.0  # seconds without a sign of life that are allowed; the trainer sends one every 2 s
START_SILENCE = 180.0  # seconds that are allowed before the trainer is ready
FAILURES = {kind.__name__: kind for kind in (UserError, DiskFault, OutOfMemory, EnvironmentFault, EnvironmentLost)}
OnProgress = Callable[[dict[str, Any]], None]


class DeterministicFailure(RunError):
    """Deterministic failure that the trainer has reported, such as non-finite weights; retrying cannot help."""


class TrainerProcess:
    """Handle of the child process that trains one run, starting from the newest intact checkpoint of the run.

    With `begin=False`, the process only imports its modules, until `begin()` is called. The run directory may then be
    incomplete until that call.
    """

    def __init__(self, run: RunDirectory, begin: bool = True) -> None:
        self.run = run
        self._log = open(run.log, "ab")  # noqa: SIM115 - lives as long as the process
        self._received, self._imported, self.ready = b"", False, False
        self.at: Boundary | None = None  # the last boundary that the trainer reached
        env = run.read_config()["env"]
        self._env_id, self._step_timeout = env["id"], float(env.get("step_timeout", 0.0))
        self.process = start_warm(TRAINER, str(run.path), log=self._log)
        if begin:
            self.begin()

    def begin(self) -> None:
        """Load the newest checkpoint of the run, if there is one, and prepare training; do nothing if called again."""
        if self.ready:
            return
        try:
            self._wait_for_imports()
            self._send("begin")
            with announce("preparing the training: environments, networks, memory check"):
                facts = self._until("ready")
                self.policy_steps: int = facts["policy_steps"]
                self._callbacks: bool = facts["callbacks"]
        except KeyboardInterrupt:
            self.interrupt()  # no caller has a reference yet that could end the process
            raise
        self.ready = True

    def advance(self, on_progress: OnProgress | None = None) -> Boundary:
        """Train to the next boundary, the next point at which the config requests a checkpoint or an evaluation."""
        self._send("advance")
        with ExitStack() as waiting:
            if self.at is None:
                waiting.enter_context(announce("first iteration; before it, functions may be compiled or loaded"))

            def note(progress: dict[str, Any]) -> None:
                waiting.close()
                if on_progress is not None:
                    on_progress(progress)

            facts = self._until("boundary", note)
        self.policy_steps = facts["policy_steps"]
        self.at = Boundary(facts["policy_steps"], tuple(facts["due"]), facts["done"], facts["reason"])
        return self.at

    def checkpoint(self) -> dict[str, Any]:
        """Save a checkpoint and return {path, policy_steps, digest}."""
        self._send("checkpoint")
        return self._until("checkpoint")

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the current policy and return the facts of the event: policy_steps, final, and the results."""
        self._send("evaluate")
        return self._until("evaluation")

    def end(self, status: str, reason: str | None) -> None:
        """Call the callbacks of the run at the end of its training, if it has any."""
        if self._callbacks:
            self._send("end", status=status, reason=reason)
            self._until("ended")

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function in the trainer's process; its exceptions are raised in this process.

        This works before `begin` too.

        Args:
            function: name of the function, as "module.name". Its first parameter is a callback that sends events to
                this process.
            *arguments: all further arguments of the function, as JSON values.

        Returns:
            The function's result, as a JSON value.
        """
        self._wait_for_imports()
        self._send("call", function=function, arguments=arguments)
        return self._until("called")["result"]

    def _wait_for_imports(self) -> None:
        if not self._imported:
            with announce("importing torch and the algorithm"):
                self._until("imported")
            self._imported = True

    def stop(self) -> None:
        """End the trainer process. Training since the last checkpoint is lost; a resumed run repeats it identically."""
        if self.process.poll() is None:
            try:
                self._send("stop")
                self._until("stopped")
                self.process.wait(GRACE)
            except (RunError, UserError, TrainingInterrupted, subprocess.TimeoutExpired):
                self.process.kill()
        self._close()

    def interrupt(self) -> None:
        """Send SIGTERM, so that the trainer writes a checkpoint and ends; kill the trainer after the grace period."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(time_left(GRACE))
            self.process.kill()  # no effect if it has ended
            self._read_last_events()
        self._close()

    def _close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _send(self, command: str, **more: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"command": command, **more}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._until("")  # raises the error that the trainer reported before it ended

    def _until(self, wanted: str, on_progress: OnProgress | None = None) -> dict[str, Any]:
        while (line := self._line()) is not None:
            facts = json.loads(line)
            event = facts.pop("event")
            if event == wanted:
                return facts
            if event == "progress" and on_progress is not None:
                on_progress(facts)
            if event == "work":
                emit("work", facts)
            if event == "emitted":
                emit(facts["kind"], facts["facts"])
            if event == "failed":
                raise unpack(facts["error"], facts["sentence"])
            if event == "doing":
                emit("stage", {"doing": facts["sentence"]})
            if event == "error":
                self._close()
                raise FAILURES.get(facts["kind"], DeterministicFailure)(facts["sentence"])
            if event == "interrupted":
                self._report_saved(facts)
                self._close()
                raise TrainingInterrupted
        code = self.process.wait()
        self._close()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise exit_error(code, f"the trainer {how}; its output is in {self.run.log}")

    def _read_last_events(self) -> None:
        """Read the remaining output of an ended trainer, without waiting, and report the saved checkpoint."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        with suppress(BlockingIOError):
            while received := os.read(self.process.stdout.fileno(), 65536):
                self._received += received
        for line in self._received.splitlines():
            if b'"interrupted"' in line:
                self._report_saved(json.loads(line))

    def _report_saved(self, facts: dict[str, Any]) -> None:
        saved = f"saved at policy step {facts['policy_steps']:,}" if facts.get("path") else None
        if message := facts.get("lost") or saved:
            emit("interrupted", {"doing": message})

    def _line(self) -> bytes | None:
        """Return the next line from the trainer; None if it has ended. Raise `EnvironmentLost` if it hangs."""
        assert self.process.stdout is not None
        # Before it is ready it may have to load an engine, and torch from a slow disk.
        limit = max(SILENCE, self._step_timeout if self.ready else START_SILENCE)
        silent = 0.0
        while b"\n" not in self._received:
            if select.select([self.process.stdout], [], [], LOOK_EVERY)[0]:
                received, silent = os.read(self.process.stdout.fileno(), 65536), 0.0
                if not received:
                    return None
                self._received += received
            elif not is_stopped(self.process.pid):  # seconds in which either process was paused do not count
                silent += LOOK_EVERY
            if silent > limit:
                self.process.kill()
                self._close()
                raise EnvironmentLost(
                    f"environment {self._env_id} hung; the trainer sent no message for {limit:g} s "
                    f"(env.step_timeout, at least {SILENCE:g} s) and was killed; its output is in {self.run.log}"
                )
        line, _, self._received = self._received.partition(b"\n")
        return line
