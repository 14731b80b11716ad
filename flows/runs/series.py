"""Files in the folder `results/` of a run, written by the stages `evaluate` (final evaluation) and `register-model`.

    policy/            the policy of the chosen checkpoint, for `flows.load_policy`
    metrics.json       final returns and the random baseline; no times, so equal runs have equal metrics
    training.csv       policy_steps, episode_return, episode_length: a row for each log interval
    evaluations.csv    policy_steps, greedy_mean, ci95_low, ci95_high, means of `env.info_keys`: a row for each
                       evaluation during training
    model.json         name, version, aliases and the decision about the champion

DVC stores, compares and plots these files. If they are written again, their bytes are the same.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.runs.with_torch import with_torch
from rlcore.store.directory import RunDirectory, write_json, write_text
from rlcore.store.history import history
from rlcore.store.series import LENGTH, RETURN, info_means


def write_results(run: RunDirectory, summary: Mapping[str, Any]) -> Path:
    """Create the files of the run's folder `results`, and return the folder.

    The files contain data of the event log and of the summary. model.json is created by the stage register-model.
    """
    folder = run.path / "results"
    log = history(run.events)
    lengths = dict(log.lines.get(LENGTH, ()))
    windows = ([steps, value, lengths.get(steps)] for steps, value in log.lines.get(RETURN, ()))
    write_text(folder / "training.csv", _table(["policy_steps", "episode_return", "episode_length"], windows))
    names = [*dict.fromkeys(name for e in log.evaluations for name in info_means(e["greedy"]))]
    rows = [
        [e["policy_steps"], e["greedy"]["mean"], *e["greedy"]["ci95"], *map(info_means(e["greedy"]).get, names)]
        for e in log.evaluations
    ]
    head = ["policy_steps", "greedy_mean", "ci95_low", "ci95_high", *names]
    write_text(folder / "evaluations.csv", _table(head, rows))
    shutil.rmtree(folder / "policy", ignore_errors=True)  # its files may be links into DVC's cache
    with_torch(
        run, "flows.registry.playing.write_policy", str(run.path / summary["checkpoint"]), str(folder / "policy")
    )
    figures = {
        name: _figures(result)
        for name, result in {**summary["eval"], "random_baseline": summary["baseline"]}.items()
        if result
    }
    write_json(
        folder / "metrics.json", {key: summary[key] for key in ("policy_steps", "env_steps", "updates")} | figures
    )
    return folder


def write_model(run: RunDirectory, result: Mapping[str, Any]) -> Path:
    """Write the result of `flows.stages.register_model.register_model` to model.json and return its path."""
    path = run.path / "results" / "model.json"
    write_json(path, dict(result))
    return path


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    low, high = result["ci95"]
    found = {"mean": result["mean"], "ci95_low": low, "ci95_high": high}
    info = {name: _figures(one) for name, one in (result.get("info") or {}).items()}
    return found | ({"info": info} if info else {})


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
