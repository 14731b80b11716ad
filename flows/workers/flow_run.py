"""What a training flow does besides, when a Prefect worker runs it: nobody sits at its terminal.

A retried flow run goes on in the run directory it had. Its log tells what a terminal would show. When its worker is
gone it ends well by itself, and does not train on unseen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.process.parents import leaving_with
from flows.runs.listeners import watching
from flows.settings import state_folder
from rlcore.store.directory import RunDirectory, write_text

if TYPE_CHECKING:
    from prefect.states import State

NAMES = ("run_name=", "run_dir=")


def flow_run_id() -> str | None:
    """The id of the flow run that a worker executes in this process; None at a terminal, in a notebook, in a test."""
    from prefect.runtime import deployment, flow_run

    return str(flow_run.get_id()) if deployment.get_id() else None


def place(flow_run: str) -> str | None:
    """The run directory that an earlier attempt of a flow run has made, if there was one."""
    note = _note(flow_run)
    return note.read_text() if note.exists() else None


def remember(flow_run: str, run: RunDirectory) -> None:
    """Note where a flow run trains, for its next attempt."""
    write_text(_note(flow_run), str(run.path))


def named(flow_run: str, overrides: list[str], run_dir: str | None) -> list[str]:
    """The overrides, with a run name of the flow run's own: two that start in the same second must not meet."""
    if run_dir or any(override.startswith(NAMES) for override in overrides):
        return overrides
    return [*overrides, f"run_name={time.strftime('%Y-%m-%d_%H-%M-%S')}_{flow_run[:8]}"]


@contextmanager
def supervised() -> Iterator[None]:
    """Tell the flow run's log what happens, and end by SIGTERM when the worker is gone.

    Yields:
        Nothing.
    """
    from prefect import get_run_logger

    from flows.report.sentences import describe

    # Prefect's own chatter is off (flows.settings); what a training tells belongs into the flow run's log.
    logging.getLogger("prefect.flow_runs").setLevel(logging.INFO)
    log = get_run_logger()

    def watcher(kind: str, facts: dict[str, Any]) -> None:
        if kind != "progress" and (sentence := describe(kind, facts)) is not None:
            log.info(sentence)

    with leaving_with("prefect", "flows.workers.worker"), watching(watcher):
        yield


@contextmanager
def going_on(flow_run: str, run: RunDirectory) -> Iterator[None]:
    """Tell the flow run's log where a retried training goes on, and where one that is cancelled will.

    Args:
        flow_run: its id.
        run: where it trains.

    Yields:
        Nothing.
    """
    from prefect import get_run_logger

    log = get_run_logger()
    if run.events.exists():
        log.info(f"goes on {resumes(run)}")
    try:
        yield
    except Exception:
        raise
    except BaseException:  # Prefect's, which ends the process; what it writes itself reads like a crash
        log.info(f"interrupted; `prefect flow-run retry {flow_run}` goes on {resumes(run)}")
        raise


def resumes(run: RunDirectory) -> str:
    """From where a run would go on, for a sentence."""
    from rlcore.store.checkpoint import newest_good

    newest = newest_good(run.checkpoints)
    return f"from its checkpoint at {int(newest.name):,} env steps" if newest else "from the beginning"


def being_trained() -> list[RunDirectory]:
    """The runs that some process leads just now, of all that flow runs have made."""
    places = {note.read_text() for note in _notes().glob("*")}  # two flow runs may have trained one run
    return [run for run in map(RunDirectory, sorted(places)) if run.taken()]


def failed(sentence: str) -> State[Any]:
    """The state of a flow run that a mistake of its user ends: the sentence is its message, and no traceback follows.

    Args:
        sentence: what is wrong, and how to mend it.

    Returns:
        The state, for the flow to return.
    """
    from prefect.states import Failed

    # Prefect turns the state into an exception of its own as the process ends, and logs that.
    logging.getLogger("prefect.flow_runs").addFilter(lambda record: record.exc_info is None)
    return Failed(message=sentence)


def _notes() -> Path:
    return state_folder() / "flow_runs"


def _note(flow_run: str) -> Path:
    return _notes() / flow_run
