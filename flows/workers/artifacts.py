"""What a person sees of a run in Prefect: progress, results, learning curve. Showing never fails a run."""

from __future__ import annotations

import base64
import logging
import re
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any
from uuid import UUID

from rlcore.store.directory import RunDirectory

log = logging.getLogger(__name__)
_on_its_way = threading.Lock()


def start_progress(run: RunDirectory) -> str | None:
    """Make the progress artifact of a run; its id, or None where Prefect cannot be told."""
    from prefect.artifacts import create_progress_artifact

    made = _try(create_progress_artifact, 0.0, _key("progress", run), f"training of {_name(run)}")
    return str(made) if made is not None else None


def show_progress(artifact: str | None, env_steps: int, total_steps: int) -> None:
    """Bring a progress artifact up to date, in a thread: while a server is away a call takes a minute to give up.

    Without an id nothing is done, and an update that comes while the last is still on its way is left out.
    """
    from prefect.artifacts import update_progress_artifact

    if artifact is None or not _on_its_way.acquire(blocking=False):
        return
    percent = min(100.0, 100.0 * env_steps / total_steps)

    def show() -> None:
        try:
            _try(update_progress_artifact, UUID(artifact), percent)
        finally:
            _on_its_way.release()

    # Prefect keeps in the context which server it talks to.
    threading.Thread(target=copy_context().run, args=(show,), daemon=True).start()


def show_results(run: RunDirectory, summary: dict[str, Any], curve: Path) -> None:
    """Show a run's summary as a table and as a page, and its learning curve (PNG)."""
    from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

    from flows.report.tables import summary_markdown

    name = _name(run)
    page = f"{summary_markdown(summary)}\n\nRun directory: `{run.path}`\n"
    # Prefect's pages are served from elsewhere and cannot open a file of this machine: the picture goes with the link.
    picture = "data:image/png;base64," + base64.b64encode(curve.read_bytes()).decode()
    _try(create_table_artifact, rows(summary), _key("results", run), f"returns of {name}")
    _try(create_markdown_artifact, page, _key("report", run), f"results of {name}")
    _try(create_image_artifact, picture, _key("learning-curve", run), f"learning curve: {curve}")


def rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a policy: what was played, mean return, its 95 % interval, episodes."""
    judged = {f"{mode} policy": result for mode, result in summary["eval"].items()}
    return [
        {
            "policy": name,
            "mean return": round(result["mean"], 1),
            "95 % interval": "[{:.1f}, {:.1f}]".format(*result["ci95"]),
            "episodes": result["episodes"],
        }
        for name, result in {**judged, "random baseline": summary.get("baseline")}.items()
        if result and result.get("mean") is not None
    ]


def _name(run: RunDirectory) -> str:
    """Algorithm and environment."""
    return "{algo} {env_id}".format(**run.read_identity())


def _key(kind: str, run: RunDirectory) -> str:
    """An artifact's key: Prefect allows lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{_name(run)}".lower()).strip("-")


def _try(show: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return show(*arguments)
    except Exception as error:  # a page that is not there is no reason to lose a training
        log.warning("not shown in Prefect: %s: %s", type(error).__name__, error)
        return None
