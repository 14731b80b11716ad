"""summary: summarize a run's results from its event log and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flows.report.curve import learning_curve
from flows.runs.lineage import whole_lineage
from flows.runs.pruning import is_trial
from rlcore.errors import RunError, UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.history import history
from rlcore.store.run_files import read_record

BASELINE = ("mean", "std", "ci95", "episodes", "returns", "info")  # of the result of the random policy
logger = logging.getLogger(__name__)


def summary(run: RunDirectory) -> dict[str, Any]:
    """Write summary.json, draw the learning curve, and return the summary.

    For a trial of a sweep, no curve is drawn, because importing matplotlib takes more time than a short training.
    """
    results = summarise(run)
    if not is_trial():
        learning_curve(run)
    return results


def _read_final(run: RunDirectory, event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the results of the final evaluation. If their file is damaged, return the results in the event log."""
    path = run.evaluations / f"{event['policy_steps']}.json"
    try:
        return read_record(path, "the event log is used instead", ("greedy",))
    except UserError as damaged:
        logger.warning("%s", damaged)
        return event


def summarise(run: RunDirectory) -> dict[str, Any]:
    """Write summary.json and lineage.json and return the summary. Results that do not exist yet are null."""
    log, identity, baseline = history(run.events), run.read_identity(), run.read_baseline()
    newest = checkpoint.newest_bookkeeping(run.checkpoints)
    if newest is None:
        raise RunError(
            f"{run.path}: there is no checkpoint to summarize; set checkpoint.save_last=true or checkpoint.every, and "
            "train again"
        )
    path, bookkeeping = newest
    policy_steps, wall = checkpoint.manifest(path)["policy_steps"], bookkeeping["wall_s"]
    final, model = log.last("evaluation", final=True), log.last("registered")
    evaluation = _read_final(run, final) if final else {}
    end = log.last("end") or {"status": "training"}
    results = {
        **{key: identity[key] for key in ("run_id", "algo", "env_id", "seed")},
        "policy_steps": policy_steps,
        "env_steps": bookkeeping["env_steps"],
        "updates": bookkeeping["updates"],
        "wall_s": round(wall, 3),
        "cpu_s": round(bookkeeping["cpu_s"], 3),
        "policy_steps_per_s": round(policy_steps / wall, 1) if wall > 0 else None,
        "eval": {mode: evaluation.get(mode) for mode in ("greedy", "stochastic")},
        "baseline": baseline and {key: baseline[key] for key in BASELINE if key in baseline},
        "checkpoint": evaluation.get("checkpoint", str(path.relative_to(run.path))),
        "video": evaluation.get("video"),
        "dreams": [str(path.relative_to(run.path)) for path in sorted(run.media.glob("dream_*"))],
        "model": {key: model[key] for key in ("name", "version", "aliases")} if model else None,
        "fingerprint": bookkeeping["fingerprint"],
        "status": end["status"],
        "stopped_by": end["reason"] if end["status"] == "stopped_early" else None,
    }
    write_json(run.lineage, whole_lineage(run, bookkeeping["fingerprint"]))
    write_json(run.summary, results)
    return results
