"""What is around the stages of a training flow: the run it means, its lock and trainer, signals, mirrors, what is told.

On a worker nobody sits at the terminal: the flow run's log tells what one would show, a mistake is the state's message,
and a flow whose worker is gone ends well by itself.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flows.config.compose import compose
from flows.process.parents import leaving_with
from flows.process.signals import TrainingInterrupted, interrupted, still_terminable, terminable
from flows.report.sentences import describe
from flows.runs.change import change_run
from flows.runs.create import new_run
from flows.runs.listeners import listening
from flows.runs.milestones import note_broken_off, note_start
from flows.runs.trainer import expect_trainer, released, resumes
from flows.settings import configure_environment
from flows.tracking.mirror import finish_mirror, mirror_in_background
from flows.workers import artifacts
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.secrets import redacted

configure_environment()  # Prefect reads its settings when it is imported

from prefect import get_run_logger  # noqa: E402
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.objects import FlowRun  # noqa: E402
from prefect.context import FlowRunContext  # noqa: E402
from prefect.exceptions import TerminationSignal  # noqa: E402
from prefect.states import Completed, Failed  # noqa: E402

PLACE = ("run_name=", "run_dir=")  # overrides that say where a run lies
PROGRESS_EVERY = 5.0  # seconds; one update of the artifact takes some 30 ms
Body = TypeVar("Body", bound=Callable[..., Any])


@contextmanager
def leading(algo: str, overrides: list[str], run_dir: str, accelerator: str = "") -> Iterator[str]:
    """Lead the run that a flow's parameters mean: nobody else may, and whatever ends it, its log says how.

    Args:
        algo: the flow's algorithm.
        overrides: as typed after `shepherd train`, or for a run that is there after `shepherd resume`.
        run_dir: of a run that is there, or to be made; "" = where the config says.
        accelerator: `fabric.accelerator` where the overrides do not set it; "" = the config's.

    Yields:
        The run's folder.

    Raises:
        UserError: the parameters are wrong, or another process leads the run.
    """
    key = "fabric.accelerator="
    if accelerator and not any(override.startswith(key) for override in overrides):
        overrides = [*overrides, f"{key}{accelerator}"]
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    flow_run, around = context.flow_run, ExitStack()
    with around:
        if on_worker := _deployment():
            around.enter_context(_supervised())
        run = _run_of(algo, overrides, run_dir, flow_run if on_worker else None)
        around.enter_context(still_terminable())
        around.enter_context(run.driving())
        if on_worker:
            around.enter_context(_going_on(flow_run, run))
        _name(flow_run, run)
        around.enter_context(_mirrored(run))
        around.enter_context(_shown(run))
        around.enter_context(released(run))
        expect_trainer(run)
        yield str(run.path)


def ending_in_a_sentence(body: Body) -> Body:
    """On a worker, let the result of a flow, or its user's mistake, be the message of the flow run's last state.

    A mistake leaves no traceback in the log.
    """

    @functools.wraps(body)
    def flow(*args: Any, **kwargs: Any) -> Any:
        try:
            made = body(*args, **kwargs)
            return Completed(message=made["result"], data=made) if _deployment() else made
        except UserError as error:
            if not _deployment():
                raise
            # Prefect makes an exception of its own of the state as the process ends, and logs that.
            logging.getLogger("prefect.flow_runs").addFilter(lambda record: record.exc_info is None)
            return Failed(message=str(error))

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
        except TerminationSignal:
            raise TrainingInterrupted from None
        except Exception:
            if interrupted():  # it came where Prefect had nothing ready to report it with, and failed over that
                raise TrainingInterrupted from None
            raise


def _run_of(algo: str, overrides: list[str], run_dir: str, flow_run: FlowRun | None) -> RunDirectory:
    """The run that follows from a flow run and its parameters: there already, at a retry say, or made now."""
    own = str(flow_run.id) if flow_run else ""
    if run_dir and RunDirectory(run_dir).config.exists():
        run = RunDirectory(Path(run_dir).absolute())
        run.refuse_second_writer()  # before anything is noted in a run that another process trains
        _check_algorithm(algo, run.read_config()["algo"]["name"])
        if overrides and not _made_by(own, run):
            change_run(run, overrides)
        return run
    if run_dir and not overrides:
        raise UserError(f"run_dir={run_dir}: no run here to be continued; overrides such as exp={algo} make one")
    typed = [*([] if any(override.startswith("exp=") for override in overrides) else [f"exp={algo}"]), *overrides]
    if run_dir:
        typed.append(f"run_dir={run_dir}")
    elif flow_run and not any(override.startswith(PLACE) for override in overrides):
        typed.append(f"run_name={_run_name(flow_run)}")
    composed = compose(typed)
    _check_algorithm(algo, composed[0].algo.name)
    run = RunDirectory(Path(composed[0].run_dir).absolute())
    return run if _made_by(own, run) else new_run(typed, own, composed)


def _made_by(flow_run: str, run: RunDirectory) -> bool:
    """Whether an earlier attempt of this flow run has made the run."""
    return bool(flow_run) and run.config.exists() and run.read_identity().get("flow_run") == flow_run


def _check_algorithm(algo: str, name: str) -> None:
    if name != algo:
        raise UserError(f"algo.name={name}: this is flow train-{algo}; run flow train-{name}")


def _run_name(flow_run: FlowRun) -> str:
    """The same at every attempt, and another for each of two flow runs that start in the same second."""
    begun = flow_run.created or flow_run.expected_start_time
    stamp = begun.astimezone().strftime("%Y-%m-%d_%H-%M-%S_") if begun else ""
    return f"{stamp}{str(flow_run.id)[-8:]}"


@contextmanager
def _mirrored(run: RunDirectory) -> Iterator[None]:
    """Note the run's start and what breaks it off, and keep MLflow up to date."""
    note_start(run)
    mirror_in_background(run)  # MLflow shows the run from its beginning

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind in ("checkpoint", "evaluation"):
            mirror_in_background(run)

    try:
        with listening(listener):
            yield
    except BaseException as error:
        failed = isinstance(error, Exception) and not interrupted()
        note_broken_off(run, *(("failed", redacted(str(error))) if failed else ("interrupted", type(error).__name__)))
        mirror_in_background(run, every=0.0)
        raise
    finish_mirror(run)


@contextmanager
def _shown(run: RunDirectory) -> Iterator[None]:
    """Show training in Prefect as a progress artifact."""
    artifact, total_steps = artifacts.start_progress(run), run.read_config()["algo"]["total_steps"]
    shown = [time.monotonic()]

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress" and (facts["env_steps"] >= total_steps or time.monotonic() - shown[0] >= PROGRESS_EVERY):
            artifacts.show_progress(artifact, facts["env_steps"], total_steps)
            shown[0] = time.monotonic()

    with listening(listener):
        yield


def _name(flow_run: FlowRun, run: RunDirectory) -> None:
    """Call and tag the flow run by environment and seed, which its parameters need not name.

    The flow run only: for every tag of a task run Prefect asks its API for a place, which takes longer than the task.
    """
    config = run.read_config()
    name = f"{config['env']['id']} seed {config['seed']} {run.read_identity()['run_id'][:6]}"
    labels = [config["algo"]["name"], config["env"]["id"], f"seed={config['seed']}"]
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name, tags=labels)


def _deployment() -> bool:
    """Whether a worker executes the flow run in this process, and not a terminal, a notebook or a test."""
    from prefect.runtime import deployment  # asks the API

    return bool(deployment.get_id())


@contextmanager
def _supervised() -> Iterator[None]:
    """On a worker: tell the flow run's log what a terminal would show, and end by SIGTERM when the worker is gone."""
    # Prefect's own chatter is off (flows.settings); what a training tells belongs into the flow run's log.
    logging.getLogger("prefect.flow_runs").setLevel(logging.INFO)
    log = get_run_logger()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        if kind != "progress" and (sentence := describe(kind, facts)) is not None:
            log.info(sentence)

    with leaving_with("prefect", "flows.workers.worker"), listening(listener):
        yield


@contextmanager
def _going_on(flow_run: FlowRun, run: RunDirectory) -> Iterator[None]:
    """On a worker: tell the log where a retried training goes on, and where one that is cancelled will."""
    log = get_run_logger()
    if run.events.exists():
        log.info(f"goes on {resumes(run)}")
    try:
        yield
    except Exception:
        raise
    except BaseException:  # Prefect's, which ends the process; what it writes itself reads like a crash
        log.info(f"interrupted; `prefect flow-run retry {flow_run.id}` goes on {resumes(run)}")
        raise
