"""Summaries and curves of runs as data frames of pandas, read from the folders of the runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from flows.report.command_lines import short_path
from flows.runs.run_list import ListedRun, list_runs
from rlcore.config.values import at
from rlcore.errors import UserError, first_line
from rlcore.store.events import read_events
from rlcore.store.series import lines

if TYPE_CHECKING:
    import pandas as pd

KEPT = ("algo", "env_id", "seed", "group", "status", "policy_steps", "total_steps")  # of `ListedRun.as_json`
SUMMARY = ("env_steps", "updates", "wall_s", "cpu_s")  # of summary.json
RESULTS = {"greedy": "eval", "stochastic": "eval", "baseline": ""}  # results in summary.json, and the key above them
log = logging.getLogger(__name__)


class RunFrames(NamedTuple):
    """Runs as data frames; both have the folder of the run as (first) index, with the name `run`.

    Attributes:
        summaries: one row for each run, newest first. Columns: those of `shepherd runs --json`; `env_steps`, `updates`,
            `wall_s`, `cpu_s`; for the greedy and the stochastic final evaluation and for the random baseline the mean
            return and its 95 % interval (`greedy`, `greedy_low`, `greedy_high`, ...); the same for each number that
            `env.info_keys` selects (`greedy_is_success`, `greedy_is_success_low`, ...); and the config keys that were
            asked for. Unknown values are missing.
        curves: one row for each run and each number of policy steps at which something was logged, and one column for
            each metric. A metric that was not logged there is missing.
    """

    summaries: pd.DataFrame
    curves: pd.DataFrame


def load_frames(chosen: str, root: str, keys: Sequence[str] = (), metrics: Sequence[str] | None = None) -> RunFrames:
    """Read the summaries and curves of the runs that a filter selects.

    Args:
        chosen: the filter, as in `shepherd runs`; "" for all runs.
        root: folder that is searched for runs.
        keys: keys of the config that become columns of the summaries, such as "algo.optimizer.lr".
        metrics: names of the metrics in the curves; None: all metrics.

    Returns:
        The data frames.

    Raises:
        UserError: If the filter selects no run, or no run has one of the config keys.
    """
    import pandas as pd

    runs = list_runs(chosen, root)
    configs: dict[Path, dict[str, Any]] = {}
    for one in runs if keys else ():
        try:
            configs[one.run.path] = one.run.read_config()
        except (UserError, OSError, ValueError, yaml.YAMLError) as error:  # a damaged run does not hide the others
            log.warning("run left out: %s: %s", one.run.config, first_line(error))
    runs = [one for one in runs if not keys or one.run.path in configs]
    missing = object()
    for key in keys:
        if runs and all(at(config, key, missing) is missing for config in configs.values()):
            raise UserError(f"keys={key}: no run has this config key; `shepherd train -h` lists all keys")
    now, index = time.time(), pd.Index([short_path(one.run.path) for one in runs], name="run")
    rows = [_summary(one, now) | {key: at(configs[one.run.path], key) for key in keys} for one in runs]
    info = [*dict.fromkeys(name for row in rows for name in row if name not in (*_columns(), *keys, "info"))]
    summaries = pd.DataFrame(rows, index=index, columns=[*_columns(), *info, *keys])
    summaries["created"] = pd.to_datetime(summaries["created"], utc=True)
    curves = {
        place: {name: _series(line) for name, line in lines(read_events(one.run.events), metrics).items()}
        for place, one in zip(index, runs, strict=True)
    }
    frames = {place: pd.DataFrame(each) for place, each in curves.items() if each}
    if not frames:
        empty = pd.MultiIndex.from_arrays([[], []], names=("run", "policy_steps"))
        return RunFrames(summaries, pd.DataFrame(index=empty, columns=list(metrics or ())))
    joined = pd.concat(frames, names=["run", "policy_steps"])
    return RunFrames(summaries, joined if metrics is None else joined.reindex(columns=list(metrics)))


def _series(line: Iterable[tuple[int, float]]) -> pd.Series:
    import pandas as pd

    return pd.Series(dict(line), dtype=float)  # of several values at a step, the last one


def _columns() -> list[str]:
    ends = [f"{mode}{end}" for mode in RESULTS for end in ("", "_low", "_high")]
    return ["name", *KEPT, "return", "return_from", "created", "age_s", *SUMMARY, *ends, "run_dir", "run_id"]


def _summary(one: ListedRun, now: float) -> dict[str, Any]:
    """Return the facts about a run, by the columns of `RunFrames.summaries`."""
    summary = one.run.read_summary()
    row = one.as_json(now) | {name: summary.get(name) for name in SUMMARY}
    for mode, above in RESULTS.items():
        result = at(summary, f"{above}.{mode}" if above else mode)
        if isinstance(result, Mapping) and result.get("mean") is not None:
            row |= _estimate(mode, result)
            for name, number in (result.get("info") or {}).items():
                row |= _estimate(f"{mode}_{name}", number)
    return row


def _estimate(name: str, result: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the mean and the interval of a result, by the columns of `RunFrames.summaries`."""
    low, high = result.get("ci95") or (None, None)
    return {name: result["mean"], f"{name}_low": low, f"{name}_high": high}
