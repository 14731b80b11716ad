"""The trainer process of a run, driven from boundary to boundary."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flows.process.signals import TrainingInterrupted, is_interrupted, time_left
from flows.runs.listeners import emit
from flows.runs.warm import start_trainer
from rlcore.errors import DiskFault, EnvironmentFault, EnvironmentLost, OutOfMemory, RunError, UserError, exit_error
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import is_stopped
from rlcore.train.boundary import Boundary
from rlcore.train.calls import unpack

GRACE = 20.0  # seconds a trainer gets to finish its iteration and write a checkpoint
LOOK_EVERY = 1.0  # seconds
SILENCE = 30.0  # seconds without a sign of life that are no cause for alarm; it gives one every 2 s
START_SILENCE = 180.0  # seconds, the same before it is ready
FAILURES = {kind.__name__: kind for kind in (UserError, DiskFault, OutOfMemory, EnvironmentFault, EnvironmentLost)}
OnProgress = Callable[[dict[str, Any]], None]


class DeterministicFailure(RunError):
    """Failure that a trainer has told of itself, such as weights that are not finite: another would come to it too."""


class TrainerProcess:
    """The live trainer of one run directory; it continues from the newest good checkpoint.

    Without `begin` the run need not be prepared before `begin()` is called.
    """

    def __init__(self, run: RunDirectory, begin: bool = True) -> None:
        self.run = run
        self._log = open(run.log, "ab")  # noqa: SIM115 - lives as long as the process
        self._heard, self.ready = b"", False
        self.at: Boundary | None = None  # the last boundary that it trained to
        env = run.read_config()["env"]
        self._env_id, self._step_timeout = env["id"], float(env.get("step_timeout", 0.0))
        self.process = start_trainer(run, self._log)
        if begin:
            self.begin()

    def begin(self) -> None:
        """Let it build its session from the run as it is now, unless it has done so."""
        if self.ready:
            return
        self._tell("begin")
        try:
            self.policy_steps: int = self._until("ready")["policy_steps"]
        except KeyboardInterrupt:
            self.interrupt()  # nobody holds it yet, so nobody else could end it
            raise
        self.ready = True

    def advance(self, on_progress: OnProgress | None = None) -> Boundary:
        """Train to the next boundary that the config sets."""
        self._tell("advance")
        said = self._until("boundary", on_progress)
        self.policy_steps = said["policy_steps"]
        self.at = Boundary(said["policy_steps"], tuple(said["due"]), said["done"], said["reason"])
        return self.at

    def checkpoint(self) -> dict[str, Any]:
        """Make the state durable; {path, policy_steps, digest}."""
        self._tell("checkpoint")
        return self._until("checkpoint")

    def evaluate(self) -> dict[str, Any]:
        """Judge the present policy."""
        self._tell("evaluate")
        return self._until("evaluation")

    def call(self, function: str, *arguments: Any) -> Any:
        """Have it call a function, before `begin` too; raises what the function raises.

        Args:
            function: `module.name`; gets a function that says an event before its arguments.
            *arguments: JSON, as the result is.

        Returns:
            The function's result.
        """
        self._tell("call", function=function, arguments=arguments)
        return self._until("called")["result"]

    def stop(self) -> None:
        """End the trainer; what was not checkpointed is lost, and found again bit for bit on resume."""
        if self.process.poll() is None:
            try:
                self._tell("stop")
                self._until("stopped")
                self.process.wait(GRACE)
            except (RunError, UserError, TrainingInterrupted, subprocess.TimeoutExpired):
                self.process.kill()
        self._close()

    def interrupt(self) -> None:
        """Let the trainer write a checkpoint and end (SIGTERM); kill it after the grace period."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(time_left(GRACE))
            self.process.kill()  # unless it has ended
            self._hear_the_end()
        self._close()

    def _close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _tell(self, command: str, **more: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"command": command, **more}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._until("")  # what the trainer said before it ended tells why

    def _until(self, wanted: str, on_progress: OnProgress | None = None) -> dict[str, Any]:
        while (line := self._line()) is not None:
            said = json.loads(line)
            event = said.pop("event")
            if event == wanted:
                return said
            if event == "progress" and on_progress is not None:
                on_progress(said)
            if event == "work":
                emit("work", said)
            if event == "told":
                emit(said["kind"], said["facts"])
            if event == "failed":
                raise unpack(said["error"], said["sentence"])
            if event == "doing":
                emit("stage", {"doing": said["sentence"]})
            if event == "error":
                self._close()
                raise FAILURES.get(said["kind"], DeterministicFailure)(said["sentence"])
            if event == "interrupted":
                self._tell_what_is_left(said)
                self._close()
                raise TrainingInterrupted
        code = self.process.wait()
        self._close()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise exit_error(code, f"the trainer {how}; its output is in {self.run.log}")

    def _hear_the_end(self) -> None:
        """Pass on what a trainer that has ended said last, as far as it is there: nobody waits for more."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        with suppress(BlockingIOError):
            while heard := os.read(self.process.stdout.fileno(), 65536):
                self._heard += heard
        for line in self._heard.splitlines():
            if b'"interrupted"' in line:
                self._tell_what_is_left(json.loads(line))

    def _tell_what_is_left(self, said: dict[str, Any]) -> None:
        saved = f"saved at policy step {said['policy_steps']:,}" if said.get("path") else None
        if left := said.get("lost") or saved:
            emit("stage", {"doing": left})

    def _line(self) -> bytes | None:
        """The next line that the trainer says, None when it has ended; `EnvironmentLost` where it hung."""
        assert self.process.stdout is not None
        # Until it is ready it may load an engine, and torch from a slow disk.
        limit = max(SILENCE, self._step_timeout if self.ready else START_SILENCE)
        silent = 0.0
        while b"\n" not in self._heard:
            if select.select([self.process.stdout], [], [], LOOK_EVERY)[0]:
                heard, silent = os.read(self.process.stdout.fileno(), 65536), 0.0
                if not heard:
                    return None
                self._heard += heard
            elif not is_stopped(self.process.pid):  # nor do the seconds count in which this process was paused
                silent += LOOK_EVERY
            if silent > limit:
                self.process.kill()
                self._close()
                raise EnvironmentLost(
                    f"environment {self._env_id}, last heard of in {self.run.log}: hung; the trainer has given no sign "
                    f"of life for {limit:g} s (env.step_timeout, but {SILENCE:g} s at least) and was killed"
                )
        line, _, self._heard = self._heard.partition(b"\n")
        return line


_live: dict[Path, TrainerProcess] = {}


def current_step(run: RunDirectory) -> int:
    """Policy steps at which the run's trainer stands or, where there is none, would go on from its checkpoints."""
    trainer = _live.get(run.path.absolute())
    if trainer is not None and trainer.ready:
        return trainer.policy_steps
    from rlcore.store import checkpoint  # numpy, which who only drives a trainer need not wait for

    return next(map(checkpoint.policy_steps, checkpoint.newest_first(run.checkpoints)), 0)


def resumes(run: RunDirectory) -> str:
    """From where a run would go on, for a sentence."""
    from rlcore.store import checkpoint  # numpy

    newest = checkpoint.newest_good(run.checkpoints)
    return (
        f"from its checkpoint at {checkpoint.policy_steps(newest):,} policy steps" if newest else "from the beginning"
    )


def trainer_for(run: RunDirectory) -> TrainerProcess:
    """The live trainer of a run in this process, or a new one from its last checkpoint (so a retried task goes on)."""
    trainer = running_trainer(run)
    trainer.begin()
    return trainer


def running_trainer(run: RunDirectory) -> TrainerProcess:
    """The live trainer of a run in this process, or a new one, which has not begun."""
    trainer = _live.get(run.path.absolute())
    if trainer is not None and trainer.process.poll() is not None:
        release(run)
    return expect_trainer(run)


def expect_trainer(run: RunDirectory) -> TrainerProcess:
    """Start the trainer of a run that will be wanted soon: importing what it needs takes seconds."""
    if run.path.absolute() not in _live:
        _live[run.path.absolute()] = TrainerProcess(run, begin=False)
    return _live[run.path.absolute()]


def live(run: RunDirectory) -> TrainerProcess | None:
    """The trainer of a run in this process, if one is alive and at work."""
    trainer = _live.get(run.path.absolute())
    return trainer if trainer is not None and trainer.ready and trainer.process.poll() is None else None


def has_trainer(run: RunDirectory) -> bool:
    """Tell whether this process drives a trainer of the run, or did until that died."""
    return run.path.absolute() in _live


def release(run: RunDirectory, *, interrupt: bool = False) -> None:
    """End the live trainer of a run, if there is one; `interrupt` lets it write a checkpoint first."""
    trainer = _live.pop(run.path.absolute(), None)
    if trainer is not None:
        trainer.interrupt() if interrupt else trainer.stop()


@contextmanager
def release_after(run: RunDirectory) -> Iterator[None]:
    """End the run's trainer after the `with`; when a signal or Prefect broke it off, with a checkpoint."""
    try:
        yield
    except BaseException as error:
        release(run, interrupt=not isinstance(error, Exception) or is_interrupted())
        raise
    finally:
        release(run)


@atexit.register
def _release_all() -> None:
    for path in list(_live):
        release(RunDirectory(path))
