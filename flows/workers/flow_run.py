"""Surroundings of a training flow's stages: the run it means, its lock and trainer, signals, mirrors, what is told.

On a worker nobody sits at the terminal: the flow run's log tells what one would show, a mistake is the state's message,
and a flow whose worker is gone ends well by itself.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC
from pathlib import Path
from typing import Any, TypeVar

from flows.config.compose import compose
from flows.process.leases import hold_lease
from flows.process.network import is_server
from flows.process.parents import WORKER, exit_with_parent
from flows.process.signals import TrainingInterrupted, is_interrupted, stay_terminable, terminable
from flows.report.sentences import describe
from flows.runs.change import change_run
from flows.runs.create import new_run
from flows.runs.listeners import subscribe
from flows.runs.milestones import note_died, note_start
from flows.runs.trainer import expect_trainer, release_after, resumes
from flows.settings import WARM, configure_environment, home
from flows.tracking.mirror import finish_mirror, mirror_in_background
from flows.tracking.mlflow_store import store_uri
from flows.workers.artifacts import show_run
from rlcore.errors import MachineFault, RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.imports import import_soon
from rlcore.system.secrets import redact

configure_environment()  # Prefect reads its settings when it is imported

from prefect import get_run_logger  # noqa: E402
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.objects import FlowRun  # noqa: E402
from prefect.context import FlowRunContext  # noqa: E402
from prefect.exceptions import TerminationSignal  # noqa: E402
from prefect.logging.loggers import LoggingAdapter  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

PLACE = ("run_name=", "run_dir=")  # overrides that say where a run lies
PREFECTS_WORDS = re.compile(r"(?:Task|Flow) run encountered an exception:? \w+: ")
# What Prefect logs of a run that was told to end, which is no crash: a line of ours says how to resume it.
NO_CRASH = re.compile(
    r"(?:Crash detected! |Finished in state Crashed\(.)Execution was aborted by a termination signal\."
    r"|Finished in state Running\(\)"
)
BRIEF = 30.0  # seconds in which a run without a server is not mirrored yet: a mirror costs as much as a short run
WORK_EVERY = 20.0  # seconds in which a long piece of work says once in the log how far it is
Body = TypeVar("Body", bound=Callable[..., Any])
Log = logging.Logger | LoggingAdapter


@contextmanager
def managed_run(
    algo: str, overrides: list[str], run_dir: str, accelerator: str = "", *, registers: bool = True
) -> Iterator[RunDirectory]:
    """Lead the run that a flow's parameters mean: nobody else may, and whatever ends it, its log says how.

    Overrides are those of `shepherd train`, or of `shepherd resume` for a `run_dir` that is there. Where no flow
    runs (a sweep's trial, in a worker process) Prefect is told nothing. `registers` says that register-model follows:
    what it imports comes while the trainer works.
    """
    key = "fabric.accelerator="
    if accelerator and not any(override.startswith(key) for override in overrides):
        overrides = [*overrides, f"{key}{accelerator}"]
    context = FlowRunContext.get()
    flow_run, log = context and context.flow_run, get_run_logger() if on_worker() else None
    with supervise(log) if log else nullcontext():
        with name_failed_run(Path(run_dir).name or f"train {algo}"):
            run = _run_of(algo, overrides, run_dir, flow_run if log else None)
        with stay_terminable(), run.driving(), _alone(run) if flow_run else nullcontext():
            if log and run.events.exists():
                log.info(f"goes on {resumes(run)}")
            shown = nullcontext()
            if flow_run:
                _name(flow_run, run)
                shown = show_run(run)
            with _mirror(run, flow_run, log), shown, release_after(run):
                expect_trainer(run)
                config = run.read_config()
                # Not in one of many processes, whose memory it would take for the whole of their trainings.
                if registers and not (config["model_manager"]["disabled"] or config["dry_run"] or os.environ.get(WARM)):
                    import_soon("mlflow.pyfunc")
                yield run


def shorten_failures(body: Body) -> Body:
    """On a worker, let the result of a flow, or the sentence on why there is none, be the message of its last state.

    A user's mistake leaves no traceback in the log; of what went wrong in a stage, its task has left one.
    """

    @functools.wraps(body)
    def flow(*args: Any, **kwargs: Any) -> Any:
        if not on_worker():
            return body(*args, **kwargs)
        try:
            _refuse_passing_folder()
            made = body(*args, **kwargs)
        except UserError as error:
            get_run_logger().error(str(error))
            # Prefect makes an exception of its own of the state as the process ends, and logs that.
            logging.getLogger("prefect.flow_runs").addFilter(lambda record: record.exc_info is None)
            return Failed(message=str(error))
        except RunError as error:
            # By the name a sweep tells what a trial did wrong from a fault of the machine.
            name = type(error).__name__ if isinstance(error, MachineFault) else None
            return Failed(name=name, message=str(error))
        return Completed(message=made["result"], data=made)

    return flow  # pyright: ignore[reportReturnType]


@contextmanager
def terminable_flow() -> Iterator[None]:
    """Let a signal end a flow that this process runs as `TrainingInterrupted`.

    Prefect turns SIGTERM into an exception of its own while a flow runs; once the flow is down it sends the signal
    again to the handler it found before, and the system's would end the process on the spot.
    """
    with terminable():
        try:
            yield
        except (TerminationSignal, Exception) as error:
            # Also where the signal came while Prefect had nothing ready to report it with, and failed over that.
            if is_interrupted() or isinstance(error, TerminationSignal):
                raise TrainingInterrupted from None
            raise


def _run_of(algo: str, overrides: list[str], run_dir: str, flow_run: FlowRun | None) -> RunDirectory:
    """The run that follows from a flow run and its parameters: there already, at a retry say, or made now."""
    own = str(flow_run.id) if flow_run else ""
    if run_dir and RunDirectory(run_dir).config.exists():
        run = RunDirectory(Path(run_dir).absolute())
        run.refuse_second_writer()  # before anything is noted in a run that another process trains
        _check_algorithm(algo, run.read_config()["algo"]["name"])
        if overrides and not _is_made_by(own, run):
            change_run(run, overrides)
        return run
    preset = any(override.startswith("exp=") for override in overrides)
    if run_dir and not preset:  # else a run that is gone, or a slip in its name, would become one of another config
        raise UserError(
            f"run_dir={run_dir}: no run here to be continued; with exp={algo} among the overrides one is made"
        )
    typed = [*([] if preset else [f"exp={algo}"]), *overrides]
    if run_dir:
        typed.append(f"run_dir={run_dir}")
    elif flow_run and not any(override.startswith(PLACE) for override in overrides):
        # The same at every attempt, and another for each of two flow runs that start in the same second.
        typed.append(f"run_name=${{exp_name}}_${{seed}}_{stamp_of(flow_run)}")
    composed = compose(typed)
    _check_algorithm(algo, composed[0].algo.name)
    run = RunDirectory(Path(composed[0].run_dir).absolute())
    return run if _is_made_by(own, run) else new_run(typed, own, composed)


def _alone(run: RunDirectory) -> AbstractContextManager[None]:
    """The place of the one process on any machine that leads a run."""
    refusal = f"leads {run.path}; wait for it or choose another run_dir"
    return hold_lease(f"run-{run.read_identity()['run_id']}", run.path / ".lease", refusal)


def _refuse_passing_folder() -> None:
    """Refuse to keep runs in code that was pulled for this flow run alone: both go when it ends."""
    if not os.environ.get("SHEPHERD_RUN_ROOT") and Path.cwd() != home().resolve():
        raise UserError(
            "SHEPHERD_RUN_ROOT is not set where this worker was started, and its runs would go with the pulled code; "
            "set it to the folder that all machines share, and start the worker again"
        )


def _is_made_by(flow_run: str, run: RunDirectory) -> bool:
    """Tell whether an earlier attempt of this flow run has made the run."""
    return bool(flow_run) and run.config.exists() and run.read_identity().get("flow_run") == flow_run


def _check_algorithm(algo: str, name: str) -> None:
    if name != algo:
        raise UserError(f"algo.name={name}: this is flow train-{algo}; run flow train-{name}")


@contextmanager
def _mirror(run: RunDirectory, flow_run: FlowRun | None, log: Log | None) -> Iterator[None]:
    """Note the run's start and what breaks it off, and keep MLflow up to date."""
    note_start(run)
    begun = time.monotonic()
    # The process that mirrors takes as long to start as a brief training does, which is brought at its end.
    at_once = bool(log or os.environ.get(WARM) or is_server(store_uri(run.read_config())))
    if at_once:
        mirror_in_background(run)  # MLflow shows the run from its beginning

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind in ("progress", "checkpoint", "evaluation") and (at_once or time.monotonic() - begun > BRIEF):
            mirror_in_background(run)

    try:
        with subscribe(listener):
            yield
    except BaseException as error:
        failed = isinstance(error, Exception) and not is_interrupted()
        note_died(run, *(("failed", redact(str(error))) if failed else ("interrupted", type(error).__name__)))
        mirror_in_background(run, every=0.0)
        if log and flow_run and not failed:  # what Prefect writes itself reads like a crash
            log.info(f"interrupted; `prefect flow-run retry {flow_run.id}` goes on {resumes(run)}")
        raise
    finish_mirror(run)


def _name(flow_run: FlowRun, run: RunDirectory) -> None:
    """Call the flow run as its run and tag it by environment and seed, which its parameters need not name.

    What a sweep has started is called by its trial.
    """
    config = run.read_config()
    labels = config["algo"]["name"], config["env"]["id"], f"seed={config['seed']}"
    call(flow_run.name if flow_run.parent_task_run_id else run.name, *labels)


def call(name: str, *labels: str) -> None:
    """Name the flow run of this process, and tag it, each tag once; nothing where none runs."""
    context = FlowRunContext.get()
    if context and (flow_run := context.flow_run):
        tags = list(dict.fromkeys([*flow_run.tags, *labels]))
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=tags)


@contextmanager
def name_failed_run(name: str) -> Iterator[None]:
    """Name the flow run of this process if it fails before its run or sweep is known.

    The name gets the time and the end of the flow run's id. Without it, Prefect shows two random words.
    """
    try:
        yield
    except Exception:
        context = FlowRunContext.get()
        if on_worker() and context and context.flow_run and not context.flow_run.parent_task_run_id:
            call(f"{name} {stamp_of(context.flow_run)}")
        raise


def stamp_of(flow_run: FlowRun) -> str:
    """Return the time at which a flow run was created, in UTC, and the last characters of its id."""
    assert flow_run.created is not None  # its server says it
    return f"{flow_run.created.astimezone(UTC):%Y-%m-%d_%H-%M-%S}_{str(flow_run.id)[-8:]}"


def on_worker() -> bool:
    """Tell whether a worker executes the flow run in this process, and not a terminal, a notebook or a test."""
    context = FlowRunContext.get()  # prefect.runtime would ask the API
    return bool(context and context.flow_run and context.flow_run.deployment_id)


def _plainly(record: logging.LogRecord) -> bool:
    """Leave out Prefect's words before a sentence of ours, and its lines on a run that was told to end."""
    if isinstance(record.msg, str):
        if NO_CRASH.match(record.msg):
            return False
        record.msg = PREFECTS_WORDS.sub("", record.msg)
    return True


@contextmanager
def supervise(log: Log) -> Iterator[None]:
    """On a worker: tell the flow run's log what a terminal would show, and end by SIGTERM when the worker is gone."""
    # Prefect's own chatter is off (flows.settings); what a training tells belongs into the flow run's log.
    logging.getLogger("prefect.flow_runs").setLevel(logging.INFO)
    for logger in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(logger).addFilter(_plainly)
    last = [time.monotonic()]

    def listener(kind: str, facts: dict[str, Any]) -> None:
        now = time.monotonic()
        if kind == "work" and now - last[0] < WORK_EVERY:
            return
        if kind != "progress" and (sentence := describe(kind, facts)) is not None:
            log.info(sentence)
            last[0] = now

    # A worker that was killed while this process started is above it no more.
    with exit_with_parent("prefect", "flows.workers.worker", certain=WORKER in os.environ), subscribe(listener):
        yield
