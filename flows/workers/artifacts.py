"""Prefect artifacts: progress, results and pictures that Prefect's web pages show for a flow run.

If an artifact cannot be created, the training run continues.
"""

from __future__ import annotations

import base64
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

from flows.report.sentences import between
from flows.report.tables import summary_markdown
from flows.runs.listeners import subscribe
from flows.settings import configure_environment
from rlcore.store.directory import RunDirectory

configure_environment()  # before the import below, because Prefect reads its settings when it is imported

import prefect.artifacts  # noqa: E402

PROGRESS_EVERY = 5.0  # seconds between two updates of the artifact; each takes about 30 ms
log = logging.getLogger(__name__)


@contextmanager
def show_progress(run: RunDirectory) -> Iterator[None]:
    """Context manager that shows the progress of training as a Prefect artifact.

    The artifact is updated in a thread, because a call to an unreachable server fails only after a minute. An update is
    skipped if the previous one has not finished.
    """
    artifact = _try(prefect.artifacts.create_progress_artifact, 0.0, _key("progress", run), f"training of {_name(run)}")
    shown, update = time.monotonic(), threading.Thread()

    def listener(kind: str, facts: dict[str, Any]) -> None:
        nonlocal shown, update
        if kind != "progress" or artifact is None or update.is_alive():
            return
        share = facts["policy_steps"] / facts["total_steps"] if facts["total_steps"] else 0.0
        if share >= 1 or time.monotonic() - shown >= PROGRESS_EVERY:
            percent = min(100.0, 100.0 * share)
            show = (_try, prefect.artifacts.update_progress_artifact, artifact, percent)
            # Prefect stores the current server in the context.
            update = threading.Thread(target=copy_context().run, args=show, daemon=True)
            update.start()
            shown = time.monotonic()

    with subscribe(listener):
        yield


@contextmanager
def show_run(run: RunDirectory) -> Iterator[None]:
    """Context manager that shows a run in Prefect: its progress, and on exit its results, if there are any."""
    with show_progress(run):
        yield
    if run.summary.exists() and run.curve.exists():
        show_results(run, run.read_summary(), run.curve)


@contextmanager
def show_share(key: str, description: str, total: int) -> Iterator[None]:
    """Context manager that shows the progress of a sweep as a Prefect artifact.

    Args:
        key: key of the artifact.
        description: text that Prefect shows with the progress bar.
        total: number of trials; the progress is the share of them that have ended.

    Yields:
        Nothing.
    """
    artifact = _try(prefect.artifacts.create_progress_artifact, 0.0, _slug(key), description)
    done = 0

    def listener(kind: str, facts: dict[str, Any]) -> None:
        nonlocal done
        if kind == "ended" and facts["number"] is not None and artifact is not None:
            done += 1
            _try(prefect.artifacts.update_progress_artifact, artifact, min(100.0, 100.0 * done / total))

    with subscribe(listener):
        yield


def show_sweep(key: str, rows: list[dict[str, Any]], page: str) -> None:
    """Create two Prefect artifacts of a sweep: a table of its trials (`rows`) and a Markdown page with its results."""
    _try(prefect.artifacts.create_table_artifact, rows, _slug(f"trials-{key}"), f"trials of sweep {key}")
    _try(prefect.artifacts.create_markdown_artifact, page, _slug(f"sweep-report-{key}"), f"sweep {key}")


def show_results(run: RunDirectory, summary: dict[str, Any], curve: Path) -> None:
    """Create Prefect artifacts with the results of a run: a table, a Markdown page, and pictures.

    Args:
        run: the run.
        summary: summary of the run.
        curve: PNG file with the learning curve.
    """
    name = _name(run)
    policies = {f"{mode} policy": result for mode, result in summary["eval"].items()}
    rows = [
        {
            "policy": policy,
            "mean return": round(result["mean"], 1),
            "95 % interval": between(*result["ci95"]),
            "episodes": result["episodes"],
        }
        for policy, result in {**policies, "random baseline": summary.get("baseline")}.items()
        if result and result.get("mean") is not None
    ]
    page = f"{summary_markdown(summary)}\n\nRun directory: `{run.path}`\n"
    _try(prefect.artifacts.create_table_artifact, rows, _key("results", run), f"returns of {name}")
    _try(prefect.artifacts.create_markdown_artifact, page, _key("report", run), f"results of {name}")
    _show_picture(_key("learning-curve", run), f"learning curve: {curve}", curve.read_bytes())
    if run.inputs.exists():
        _show_picture(_key("inputs", run), f"network inputs: {run.inputs}", run.inputs.read_bytes())
    for dream in summary.get("dreams", ()):
        if dream.endswith(".png"):
            path = run.path / dream
            _show_picture(_key(path.stem, run), f"{path.stem.replace('_', ' ')}: {path}", path.read_bytes())


def show_comparison(name: str, markdown: str, pictures: Mapping[str, bytes]) -> None:
    """Create Prefect artifacts of a comparison of runs: a Markdown page, and pictures.

    Args:
        name: name of the comparison.
        markdown: the page.
        pictures: title -> content of a PNG file.
    """
    key = _slug(f"compare-{name}")
    _try(prefect.artifacts.create_markdown_artifact, markdown, key, name)
    for place, (title, png) in enumerate(pictures.items(), 1):
        _show_picture(f"{key}-{place}", title, png)


def _show_picture(key: str, title: str, png: bytes) -> None:
    """Create a Prefect artifact with a picture.

    The PNG data are embedded in the artifact as a data URL, because Prefect's pages cannot open local files.
    """
    picture = "data:image/png;base64," + base64.b64encode(png).decode()
    _try(prefect.artifacts.create_image_artifact, picture, key, title)


def _name(run: RunDirectory) -> str:
    """Return the algorithm and the environment of a run as text, such as "ppo CartPole-v1"."""
    return "{algo} {env_id}".format(**run.read_identity())


def _key(kind: str, run: RunDirectory) -> str:
    return _slug(f"{kind}-{_name(run)}")


def _slug(text: str) -> str:
    """Convert text to the key of a Prefect artifact, which may contain only lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _try(show: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return show(*arguments)
    except Exception as error:  # a missing artifact must not end a training
        log.warning("not shown in Prefect: %s: %s", type(error).__name__, error)
        return None
