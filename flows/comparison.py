"""Prefect flow `compare`, which runs `shepherd compare` on a worker.

Prefect's page of the flow run shows the verdict and the pictures.
"""

from __future__ import annotations

from typing import Any

from flows.tasks import VERSION, options
from flows.workers import artifacts
from flows.workers.flow_run import call, shorten_failures

from prefect import flow, task  # isort: skip - the modules above set the environment that it reads

from flows.compare.report import report
from flows.compare.verdict import as_markdown
from flows.settings import run_root


@task(**options(), name="compare", task_run_name="compare {sides}")
def _compare(sides: list[str], out: str, threshold: float | None, runs: str, metric: str) -> dict[str, Any]:
    comparison, verdict, pictures, folder = report(sides, out, runs or run_root(), threshold, metric=metric or None)
    place = f"\nPage: `{(folder / 'index.html').absolute()}`\n"
    drawn = {picture.title: picture.png for picture in pictures}
    artifacts.show_comparison(" against ".join(sides), as_markdown(comparison, verdict) + place, drawn)
    return {
        "result": verdict.headline,
        "ranked": verdict.ranked,
        "best": verdict.best,
        "report": str(folder.absolute()),
    }


# Prefect's form shows these defaults as empty fields; they are never modified.
@flow(name="compare", version=VERSION, persist_result=False)
@shorten_failures
def compare(
    sides: list[str] = [],  # noqa: B006
    out: str = "report",
    threshold: float | None = None,
    runs: str = "",
    metric: str = "",
) -> Any:
    """Compare groups of runs and write a verdict, pictures, tables and a page.

    Args:
        sides: two or more groups of runs to compare. Each one is the name of a group (`group=NAME` in the config of its
            runs), a sweep, a folder or a glob of runs, or a search mlflow:EXPERIMENT?FILTER. If the only element is a
            sweep, the winner of the sweep is compared with the default configuration.
        out: the folder for index.html, the pictures, runs.csv, points.csv and compare.json.
        threshold: return for the table "steps to a threshold"; with several environments, a normalized score (0 is
            random, 1 is solved). Default: the return at which the environment is solved.
        runs: the folder that is searched for groups; default: the folder to which new runs are written.
        metric: a number of env.info_keys or a callback's metric, for example is_success; default: the return.

    Returns:
        Verdict as a sentence (`result`), True if the groups were ranked (`ranked`), name of the significantly best
        group or None (`best`), and output folder (`report`).
    """
    call(f"compare {' against '.join(sides)}")
    return _compare(sides, out, threshold, runs, metric)
