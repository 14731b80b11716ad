"""Command `shepherd registry`, which lists registered models and moves the alias `champion` to another version."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flows.registry import champions
from flows.registry import models as registry
from flows.report.command_lines import short_path
from flows.report.sentences import between, number, sign
from flows.report.terminal import show, table
from flows.settings import tracking_uri
from flows.tracking.mlflow_store import reachable_store
from flows.tracking.tags import tag_value
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import print_safely

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

HEAD = ("name", "version", "aliases", "policy steps", "mean at the gate", "decision", "registered", "run directory")
NUMBERS = ("version", "policy steps", "mean at the gate")


def list_versions(name: str | None = None) -> None:
    """Print registered models and their versions, newest first.

    The champion is the version with the alias `champion`. If only one model is printed, the list of its present and
    former champions follows.
    """
    client = reachable_store(tracking_uri())
    if name is not None:
        registry.require_model(client, name, name)
    chosen = [name] if name is not None else sorted(registry.model_names(client))
    rows = [row for one in chosen for row in _rows(client, one)]
    if not rows:
        what = f"{name} has no version" if name is not None else "no model is registered yet"
        print_safely(f"{what}; `shepherd train exp=ppo` trains and registers one")
        return
    show(table(HEAD, rows, NUMBERS))
    if len(chosen) == 1 and (moves := list(_history(client, chosen[0]))):
        show("", table(("champion since", "", "", "moved by", "why"), moves))


def promote(name: str, version: str, why: str = "") -> str:
    """Move the alias `champion` of a model to a version, store the reason, and return a message for the user."""
    client = reachable_store(tracking_uri())
    with registry.deciding(client.tracking_uri):
        return _line(name, champions.promote(client, name, version.removeprefix("v"), why))


def rollback(name: str, why: str = "") -> str:
    """Move the alias `champion` of a model back to the version that had it before, and return a message."""
    client = reachable_store(tracking_uri())
    with registry.deciding(client.tracking_uri):
        return _line(name, champions.rollback(client, name, why))


def _line(name: str, move: champions.Move) -> str:
    before = f"version {move.before}" if move.before is not None else "none"
    return f"{name}: champion is version {move.version}, was {before} ({move.why})"


def _rows(client: MlflowClient, name: str) -> Iterator[tuple[str, ...]]:
    aliases = sorted(client.get_registered_model(name).aliases.items())
    for version in reversed(registry.versions_of(client, name)):
        tags, own = version.tags, str(version.version)
        steps, mean, folder = (
            tags.get("policy_steps", tags.get("env_steps")),
            tags.get("eval_mean"),
            tag_value(tags, "run_dir"),
        )
        yield (
            name,
            own,
            ", ".join(alias for alias, to in aliases if str(to) == own) or "-",
            f"{int(steps):,}" if steps else "-",
            number(float(mean)) if mean else "-",
            _decision(version),
            _minute(datetime.datetime.fromtimestamp(version.creation_timestamp / 1000, datetime.UTC)),
            _folder(Path(folder), tag_value(tags, "run_id") or "") if folder else "not of this project",
        )


def _decision(version: ModelVersion) -> str:
    """Return in a few words how a version compared with the champion (or the random policy) at its registration.

    An example is "beats version 3: +12.5 [8.1, 16.9]". The version's tag `decision` has the complete sentence.
    """
    tags = version.tags
    if "part" in tags:
        return f"{tags['part']} of {tags['policy']}"
    if "decision" not in tags:  # this tag is written last
        return "undecided"
    if not {"difference", "difference_low", "difference_high"} <= set(tags):
        return "undecided" if tags.get("undecided") == "true" else "not compared"
    low, high = float(tags["difference_low"]), float(tags["difference_high"])
    better = tags["decision"].startswith("Champion")
    verb = "undecided against" if tags.get("undecided") == "true" else "beats" if better else "does not beat"
    other = tags.get("compared_with", "").removeprefix("the ")
    return f"{verb} {other}: {sign(float(tags['difference']))} {between(low, high)}"


def _history(client: MlflowClient, name: str) -> Iterator[tuple[str, ...]]:
    for move in reversed(champions.history(client, name)):
        when = _minute(datetime.datetime.fromisoformat(move.when))
        after = f"after {move.before}" if move.before is not None else "the first"
        yield when, f"version {move.version}", after, f"{move.how} by {move.by}", move.why


def _minute(when: datetime.datetime) -> str:
    """Format a time to the minute, in the local time zone."""
    return when.astimezone().strftime("%Y-%m-%d %H:%M")


def _folder(path: Path, run_id: str) -> str:
    """Return the run directory of a registered version, with the note "(gone)" if the directory no longer exists.

    If the run was moved because a new run replaced it, the folder to which it was moved is returned.
    """
    aside = RunDirectory(path).set_aside / run_id
    place = aside if run_id and aside.is_dir() else path
    return short_path(place) if place.is_dir() else f"{short_path(place)} (gone)"
