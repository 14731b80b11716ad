"""Context in which a training flow runs: run directory, lock, trainer process, signals, tracking backends and log.

If a Prefect worker executes the flow, there is no terminal. Progress lines then appear in the log of the flow run, and
a user error becomes the message of the flow run's state. If the worker dies, the flow writes a checkpoint and ends.
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
from flows.prefect_repairs.leases import hold_lease
from flows.process.network import is_server
from flows.process.parents import WORKER, exit_with_parent
from flows.process.signals import TrainingInterrupted, is_interrupted, stay_terminable, terminable
from flows.report.sentences import describe
from flows.runs.create import change_run, new_run
from flows.runs.listeners import subscribe
from flows.runs.milestones import note_died, note_start
from flows.runs.trainer import expect_trainer, release_after, resumes
from flows.settings import WARM, configure_environment, home
from flows.tracking.mirror import finish_mirror, mirror_in_background
from flows.tracking.mlflow_store import store_uri
from flows.workers.artifacts import show_run
from rlcore.errors import MachineFault, RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history
from rlcore.system.imports import import_soon
from rlcore.system.secrets import redact

configure_environment()  # before the imports below, because Prefect reads its settings when it is imported

from prefect import get_run_logger  # noqa: E402
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.objects import FlowRun  # noqa: E402
from prefect.context import FlowRunContext  # noqa: E402
from prefect.exceptions import TerminationSignal  # noqa: E402
from prefect.logging.loggers import LoggingAdapter  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

PLACE = ("run_name=", "run_dir=")  # overrides that determine the folder of a run
PREFECTS_WORDS = re.compile(r"(?:Task|Flow) run encountered an exception:? \w+: ")
# Prefect's log lines about an interrupted run. It did not crash, and our own line names the command that resumes it.
NO_CRASH = re.compile(
    r"(?:Crash detected! |Finished in state Crashed\(.)Execution was aborted by a termination signal\."
    r"|Finished in state Running\(\)"
)
BRIEF = 30.0  # seconds after which a run without a server is copied to MLflow: a copy costs as much as a short run
WORK_EVERY = 20.0  # seconds between two log lines about the progress of long work
Body = TypeVar("Body", bound=Callable[..., Any])
Log = logging.Logger | LoggingAdapter


@contextmanager
def managed_run(
    algo: str, overrides: list[str], run_dir: str, accelerator: str = "", *, register: bool = True
) -> Iterator[RunDirectory]:
    """Context manager that creates or resumes a training run, and locks it so that no other process trains it.

    On exit, the event log of the run contains how it ended. If this is called outside of a Prefect flow, as for a trial
    of a sweep in a worker process, nothing is reported to Prefect.

    Args:
        algo: name of the algorithm.
        overrides: overrides of `shepherd train`, or of `shepherd resume` if `run_dir` exists.
        run_dir: the run to resume; "" = a new run.
        accelerator: value of `fabric.accelerator` if the overrides do not set it; "" = do not set it.
        register: True if the stage register-model follows. Modules that it needs are then imported during training.

    Yields:
        The run.
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
                log.info(f"resuming {resumes(run)}")
            shown = nullcontext()
            if flow_run:
                _name(flow_run, run)
                shown = show_run(run)
            with _mirror(run, flow_run, log), shown, release_after(run):
                expect_trainer(run)
                config = run.read_config()
                # Not if many processes train at once: each would need memory for these imports during its training.
                if register and not (config["model_manager"]["disabled"] or config["dry_run"] or os.environ.get(WARM)):
                    import_soon("mlflow.pyfunc")
                yield run


def shorten_failures(body: Body) -> Body:
    """Decorate a Prefect flow so that its final state on a worker has a short message: its result, or its error.

    A user error is logged without a traceback. The traceback of another error in a stage is logged only once, by the
    task.
    """

    @functools.wraps(body)
    def flow(*args: Any, **kwargs: Any) -> Any:
        if not on_worker():
            return body(*args, **kwargs)
        try:
            _refuse_passing_folder()
            result = body(*args, **kwargs)
        except UserError as error:
            get_run_logger().error(str(error))
            # When the process ends, Prefect converts the state to an exception of its own and logs it.
            logging.getLogger("prefect.flow_runs").addFilter(lambda record: record.exc_info is None)
            return Failed(message=str(error))
        except RunError as error:
            # A sweep recognizes faults of the machine by the name of the state.
            name = type(error).__name__ if isinstance(error, MachineFault) else None
            return Failed(name=name, message=str(error))
        return Completed(message=result["result"], data=result)

    return flow  # pyright: ignore[reportReturnType]


@contextmanager
def terminable_flow() -> Iterator[None]:
    """Context manager that raises `TrainingInterrupted` if a signal interrupts a Prefect flow of this process.

    While a flow runs, Prefect converts SIGTERM to an exception of its own. After the flow has ended, Prefect sends
    SIGTERM to this process again. Without this context, that signal would kill the process immediately.
    """
    with terminable():
        try:
            yield
        except (TerminationSignal, Exception) as error:
            # Other exceptions are possible too, if the signal arrived before Prefect could report it.
            if is_interrupted() or isinstance(error, TerminationSignal):
                raise TrainingInterrupted from None
            raise


def _run_of(algo: str, overrides: list[str], run_dir: str, flow_run: FlowRun | None) -> RunDirectory:
    """Return the training run that a flow run's parameters describe; create it if it does not exist.

    If Prefect retries the flow run, the training run exists already.

    Args:
        algo: name of the algorithm.
        overrides: overrides of `shepherd train`, or of `shepherd resume` if `run_dir` exists.
        run_dir: the run to resume; "" = a new run.
        flow_run: the flow run on a worker; None = no worker executes the flow.

    Returns:
        The run.
    """
    own = str(flow_run.id) if flow_run else ""
    if run_dir and RunDirectory(run_dir).config.exists():
        run = RunDirectory(Path(run_dir).absolute())
        run.refuse_second_writer()  # before anything is written to a run that another process trains
        _check_algorithm(algo, run.read_config()["algo"]["name"])
        if overrides and not _is_made_by(own, run):
            change_run(run, overrides)
        return run
    preset = any(override.startswith("exp=") for override in overrides)
    if run_dir and not preset:  # otherwise a missing run, or a typing error, would create a run with another config
        raise UserError(
            f"run_dir={run_dir}: no run here to resume; correct the path, or add exp={algo} to the overrides to create "
            "a new run in this folder"
        )
    typed = [*([] if preset else [f"exp={algo}"]), *overrides]
    if run_dir:
        typed.append(f"run_dir={run_dir}")
    elif flow_run and not any(override.startswith(PLACE) for override in overrides):
        # Identical in every attempt, but different for two flow runs that start in the same second.
        typed.append(f"run_name=${{exp_name}}_${{seed}}_{stamp_of(flow_run)}")
    composed = compose(typed)
    _check_algorithm(algo, composed[0].algo.name)
    run = RunDirectory(Path(composed[0].run_dir).absolute())
    return run if _is_made_by(own, run) else new_run(typed, own, composed)


def _alone(run: RunDirectory) -> AbstractContextManager[None]:
    """Return a context manager that prevents processes on other machines from training the run at the same time."""
    refusal = f"is running {run.path}; wait until it ends, or choose another run_dir"
    return hold_lease(f"run-{run.read_identity()['run_id']}", run.path / ".lease", refusal)


def _refuse_passing_folder() -> None:
    """Raise UserError if a worker has cloned the code for this flow run and the run would be stored in the clone.

    The run would be lost, because the clone is deleted after the flow run.
    """
    if not os.environ.get("SHEPHERD_RUN_ROOT") and Path.cwd() != home().resolve():
        raise UserError(
            "SHEPHERD_RUN_ROOT is not set in the environment of this worker, so its runs would be deleted with the "
            "pulled code; set it to the folder that all machines share, and restart the worker"
        )


def _is_made_by(flow_run: str, run: RunDirectory) -> bool:
    """Return True if an earlier attempt of this flow run (its id) has created the training run."""
    return bool(flow_run) and run.config.exists() and run.read_identity().get("flow_run") == flow_run


def _check_algorithm(algo: str, name: str) -> None:
    if name != algo:
        raise UserError(f"algo.name={name}: cannot be trained by the flow train-{algo}; run the flow train-{name}")


@contextmanager
def _mirror(run: RunDirectory, flow_run: FlowRun | None, log: Log | None) -> Iterator[None]:
    """Context manager that writes the start and the end of a run to its event log, and keeps MLflow up to date.

    Args:
        run: the run.
        flow_run: Prefect's flow run; None outside of a flow.
        log: log of the flow run on a worker; None if no worker executes the flow.

    Yields:
        Nothing.
    """
    # The command removes a new run that make-env refuses. A run with a start event exists longer, and is kept.
    refusable = not log and not run.card.exists() and history(run.events).last("start") is None
    note_start(run)
    begun = time.monotonic()
    # The process that copies the log to MLflow takes as long to start as a brief training, so the log of a brief
    # training is copied only at its end.
    at_once = bool(log or os.environ.get(WARM) or is_server(store_uri(run.read_config())))
    if at_once and not refusable:
        mirror_in_background(run)  # MLflow shows the run from its start

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind in ("progress", "checkpoint", "evaluation") and (at_once or time.monotonic() - begun > BRIEF):
            mirror_in_background(run)

    try:
        with subscribe(listener):
            yield
    except BaseException as error:
        if refusable and flow_run and isinstance(error, UserError) and not run.card.exists():
            raise
        failed = isinstance(error, Exception) and not is_interrupted()
        note_died(run, *(("failed", redact(str(error))) if failed else ("interrupted", type(error).__name__)))
        mirror_in_background(run, every=0.0, last=True)
        if log and flow_run and not failed:  # Prefect's own message looks like a crash
            log.info(f"interrupted; `prefect flow-run retry {flow_run.id}` resumes the run {resumes(run)}")
        raise
    finish_mirror(run)


def _name(flow_run: FlowRun, run: RunDirectory) -> None:
    """Give a flow run the name of its training run, and tags with algorithm, environment and seed.

    If a sweep has started the flow run, its name is that of the trial and stays unchanged.
    """
    config = run.read_config()
    labels = config["algo"]["name"], config["env"]["id"], f"seed={config['seed']}"
    call(flow_run.name if flow_run.parent_task_run_id else run.name, *labels)


def call(name: str, *labels: str) -> None:
    """Set the name of this process's flow run, and add tags that it does not have yet. No-op outside of a flow run."""
    context = FlowRunContext.get()
    if context and (flow_run := context.flow_run):
        tags = list(dict.fromkeys([*flow_run.tags, *labels]))
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=tags)


@contextmanager
def name_failed_run(name: str) -> Iterator[None]:
    """Context manager that gives the flow run of this process a meaningful name if its body fails.

    The body finds or creates the run or sweep, after which the flow run is named. If it fails, the flow run would keep
    the two random words that Prefect has chosen as its name. It then gets `name`, the time, and the end of its id.
    """
    try:
        yield
    except Exception:
        context = FlowRunContext.get()
        if on_worker() and context and context.flow_run and not context.flow_run.parent_task_run_id:
            call(f"{name} {stamp_of(context.flow_run)}")
        raise


def stamp_of(flow_run: FlowRun) -> str:
    """Return text that identifies a flow run: time of creation (UTC) and the last eight characters of its id."""
    assert flow_run.created is not None  # set by the server
    return f"{flow_run.created.astimezone(UTC):%Y-%m-%d_%H-%M-%S}_{str(flow_run.id)[-8:]}"


def on_worker() -> bool:
    """Return True if this process was started by a Prefect worker to execute a flow run.

    Return False for a flow that a command, a notebook or a test has started.
    """
    context = FlowRunContext.get()  # prefect.runtime would send a request to the API
    return bool(context and context.flow_run and context.flow_run.deployment_id)


def _plainly(record: logging.LogRecord) -> bool:
    """Filter a log message of Prefect; return False to suppress it.

    Prefect's messages about interrupted runs are suppressed, because they look like a crash. The prefix that Prefect
    adds to our error messages is removed.
    """
    if isinstance(record.msg, str):
        if NO_CRASH.match(record.msg):
            return False
        record.msg = PREFECTS_WORDS.sub("", record.msg)
    return True


@contextmanager
def supervise(log: Log) -> Iterator[None]:
    """Context manager for a flow run that a Prefect worker executes.

    It writes the progress lines that a terminal would show to the log of the flow run. It sends SIGTERM to this process
    if the worker dies.

    Args:
        log: log of the flow run.
    """
    # flows.settings disables Prefect's own messages. Those of a training belong in the log of the flow run.
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

    # A worker that was killed during the start of this process is no longer one of its parents.
    with exit_with_parent("prefect", "flows.workers.worker", certain=WORKER in os.environ), subscribe(listener):
        yield
