"""What came of a sweep: figures for a program, a preset of the best configuration."""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.study import Study, meant


def status(folder: SweepFolder) -> dict[str, Any]:
    """What a sweep has come to so far; may be asked while it is driven."""
    plan = folder.read()
    study = Study(plan, folder.storage(plan))
    rows = [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "params": meant(plan.space, trial),
            "value": trial.value,
            "env_steps": trial.user_attrs.get("env_steps", 0),
            **({"sentence": trial.user_attrs["sentence"]} if "sentence" in trial.user_attrs else {}),
        }
        for trial in study.trials
    ]
    best = study.best()
    confirmed = json.loads(folder.confirmed.read_text()) if folder.confirmed.exists() else None
    if confirmed and (best is None or confirmed["trial"] != best.number):
        confirmed = None  # of an earlier winner
    return {
        "name": folder.name,
        "wanted": study.size,
        "trials": rows,
        "saved": saved(rows),
        "best": best and rows[best.number],
        "confirmed": confirmed,
    }


def saved(rows: list[dict[str, Any]]) -> int:
    """Env steps that the pruned trials did not take, where each would have taken what the complete ones did."""
    whole = [row["env_steps"] for row in rows if row["state"] == "complete"]
    pruned = [row["env_steps"] for row in rows if row["state"] == "pruned"]
    return sum(max(0, round(fmean(whole)) - steps) for steps in pruned) if whole else 0


def report(sweep: Sweep) -> dict[str, Any]:
    """Write the page; what the flow gives."""
    found = status(sweep.folder)
    best = found["best"]
    words = (
        f"best of {len(found['trials'])} trials: {best['number']} with {best['value']:.1f}"
        if best
        else "no trial was completed"
    )
    return {"name": found["name"], "result": words, "best": best, "confirmed": found["confirmed"]}
