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


def key(kind: str, label: str) -> str:
    """An artifact's key: Prefect allows lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{label}".lower()).strip("-")


def label_of(run: RunDirectory) -> str:
    """Algorithm and environment."""
    config = run.read_config()
    return f"{config['algo']['name']} {config['env']['id']}"


def start_progress(run: RunDirectory) -> str | None:
    """Make the progress artifact of a flow run; its id, or None where Prefect cannot be told."""
    from prefect.artifacts import create_progress_artifact

    label = label_of(run)
    made = _shown(lambda: create_progress_artifact(0.0, key("progress", label), f"training of {label}"))
    return str(made) if made is not None else None


def show_progress(artifact: str | None, env_steps: int, total_steps: int) -> None:
    """Bring the progress artifact up to date, in a thread: while a server is away a call takes a minute to give up.

    One that comes while the last is still on its way is left out.

    Args:
        artifact: its id; None does nothing.
        env_steps: taken so far.
        total_steps: the budget.
    """
    from prefect.artifacts import update_progress_artifact

    if artifact is None or not _on_its_way.acquire(blocking=False):
        return
    percent = min(100.0, 100.0 * env_steps / total_steps)

    def show() -> None:
        try:
            _shown(lambda: update_progress_artifact(UUID(artifact), percent))
        finally:
            _on_its_way.release()

    # Prefect keeps in the context which server it talks to.
    threading.Thread(target=copy_context().run, args=(show,), daemon=True).start()


def show_results(run: RunDirectory, summary: dict[str, Any], curve: Path) -> None:
    """Show a run's results as a table, as a page and as the learning curve.

    Args:
        run: its directory.
        summary: of the run.
        curve: the learning curve, PNG.
    """
    from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

    from flows.report.tables import results_markdown

    label = label_of(run)
    _shown(lambda: create_table_artifact(rows(summary), key("results", label), f"returns of {label}"))
    page = f"{results_markdown(summary)}\n\nRun directory: `{run.path}`\n"
    _shown(lambda: create_markdown_artifact(page, key("report", label), f"results of {label}"))
    # Prefect's pages are served from elsewhere and cannot open a file of this machine: the picture goes with the link.
    picture = "data:image/png;base64," + base64.b64encode(curve.read_bytes()).decode()
    _shown(lambda: create_image_artifact(picture, key("learning-curve", label), f"learning curve: {curve}"))


def rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a policy: what was played, mean return, its 95 % interval, episodes."""
    judged = {f"{mode} policy": summary["eval"].get(mode) for mode in ("greedy", "stochastic")}
    table = []
    for name, result in {**judged, "random baseline": summary.get("baseline")}.items():
        if result and result.get("mean") is not None:
            low, high = result["ci95"]
            interval = f"[{low:.1f}, {high:.1f}]"
            row = {"policy": name, "mean return": round(result["mean"], 1), "95 % interval": interval}
            table.append(row | {"episodes": result["episodes"]})
    return table


def _shown(show: Callable[[], Any]) -> Any:
    try:
        return show()
    except Exception as error:  # a page that is not there is no reason to lose a training
        log.warning("not shown in Prefect: %s: %s", type(error).__name__, error)
        return None
