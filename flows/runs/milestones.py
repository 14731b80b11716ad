"""The milestones in a run's event log that its trainer does not see: start, random baseline, end; each once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from flows.runs.listeners import emit
from rlcore.errors import RunError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE, EventLog
from rlcore.store.history import history
from rlcore.train.boundary import Boundary

STATUS = {
    "target_return": "stopped_early",
    "plateau": "stopped_early",
    "dry_run": "dry_run",
    "pruned": "pruned",
}  # reason -> how it ended


def note_start(run: RunDirectory) -> None:
    """Begin a run's event log, unless it has begun, and tell once what of its config has no effect."""
    if history(run.events).last("start") is None:
        from flows.config.notices import notices  # Hydra

        identity = run.read_identity()
        EventLog(run.events).append("start", **{key: identity[key] for key in ("run_id", "algo", "env_id", "seed")})
        for notice in notices(config_of(run), run.read_overrides()):
            emit("stage", {"doing": notice})


def note_baseline(run: RunDirectory) -> None:
    """Put the result of a dataset that is there already into the event log, unless it has one."""
    result = run.read_baseline()
    if result is not None and not has_baseline(run):
        note_result(run, result)


def has_baseline(run: RunDirectory) -> bool:
    """Tell whether the log has the random policy's result."""
    return history(run.events).last("baseline") is not None


def has_dataset(run: RunDirectory) -> bool:
    """Tell whether the random policy was played: the log has its result, and no damaged dataset is to be made again."""
    damaged = (run.dataset / "manifest.json").exists() and run.read_baseline() is None
    return has_baseline(run) and not damaged


def is_trained(run: RunDirectory) -> bool:
    """Tell whether training is done, and was not pruned."""
    end = history(run.events).last("end")
    return end is not None and end["status"] != "pruned"


def is_evaluated(run: RunDirectory) -> bool:
    """Tell whether a last evaluation is not wanted, or is there, of the checkpoint and the episodes that count now.

    A resumed run may have trained on, and may want other episodes than before.
    """
    from rlcore.store.checkpoint import choose  # numpy

    config = config_of(run)
    final = history(run.events).last("evaluation", final=True)
    if not config.algo.run_test:
        return True
    if final is None or final.get("checkpoint") != str(choose(run).relative_to(run.path)):
        return False
    return final["greedy"]["episodes"] == config.final_episodes


def is_registered(run: RunDirectory) -> bool:
    """Tell whether a policy was registered after training had ended, or none is to be."""
    config = run.read_config()
    if config.get("dry_run") or config.get("model_manager", {}).get("disabled"):
        return True
    newest_first = reversed(history(run.events).events)
    kinds = (e["kind"] for e in newest_first if e["kind"] == "registered" or e.get("status") in COMPLETE)
    return next(kinds, None) == "registered"


def is_over(run: RunDirectory) -> bool:
    """Tell whether nothing of the flow is left to do: trained and judged, and registered where it is to be."""
    return run.read_summary().get("status") in COMPLETE and is_registered(run)


def note_result(run: RunDirectory, result: dict[str, Any]) -> dict[str, Any]:
    """Put the random policy's result into the event log; returns the event."""
    return EventLog(run.events).append("baseline", **{key: result[key] for key in ("mean", "std", "ci95", "episodes")})


def note_end(run: RunDirectory, boundary: Boundary) -> None:
    """Write that training is done, or has been pruned."""
    here = {"policy_steps": boundary.policy_steps, "status": STATUS.get(boundary.reason or "", "finished")}
    noted = history(run.events).last("end")
    if noted is None or not here.items() <= noted.items():  # it may have been interrupted after it had finished
        EventLog(run.events).append("end", **here, reason=boundary.reason)


def note_died(run: RunDirectory, status: str, reason: str) -> None:
    """Write that training was `interrupted`, has `failed` or `died`, unless it had ended before."""
    log = history(run.events)
    if log.ended is not None:
        return
    with suppress(RunError):  # on a full disk, say: what ended training is told, not that it could not be noted
        EventLog(run.events).append("end", status=status, policy_steps=log.policy_steps, reason=reason)
