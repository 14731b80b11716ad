"""Who is champion of a registered model, who was before, and why: every move of the alias goes through `crown`.

MLflow forgets where an alias pointed. The history therefore stands in tags of the registered model, a line a move,
which its page shows: `champion.0001`, `champion.0002`, ... The tag is written first and the alias moved then, so that
every champion has its reasons; where a kill came between the two, the alias is still where it was before the move.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.registry.models import CHAMPION, champion_of, find_version, versions_of
from flows.tracking.mlflow_store import user
from rlcore.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

TAG = re.compile(r"champion\.(\d+)")
LINE = re.compile(r"version (\d+) after (\d+|none) \| (\w+) by (.+?) \| (\S+) \| (.*)", re.DOTALL)
WHY_LIMIT = 1000  # characters; MLflow takes 5,000 in a tag


@dataclass(frozen=True)
class Move:
    """One move of the alias.

    Attributes:
        version: the new champion.
        before: the one it took the place of; None where there was none.
        how: "gate" (a training's comparison), "promote" or "rollback" (by hand).
        by: the user whose process did it.
        when: UTC, ISO 8601, to the second.
        why: a sentence.
    """

    version: str
    before: str | None
    how: str
    by: str
    when: str
    why: str

    def line(self) -> str:
        """The move as its tag's value."""
        return (
            f"version {self.version} after {self.before or 'none'} | {self.how} by {self.by} | {self.when} | {self.why}"
        )


def crown(client: MlflowClient, name: str, version: str, how: str, why: str) -> Move:
    """Make a version of a model the champion, inside `registry.deciding`; the move as noted, `why` cut."""
    champion = champion_of(client, name)
    before = champion.version if champion is not None else None
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    move = Move(str(version), None if before is None else str(before), how, user(), now, why[:WHY_LIMIT])
    number = max(_numbered(client.get_registered_model(name).tags), default=0) + 1
    client.set_registered_model_tag(name, f"champion.{number:04}", move.line())
    client.set_registered_model_alias(name, CHAMPION, move.version)
    return move


def history(client: MlflowClient, name: str) -> list[Move]:
    """The moves of a model's alias that were carried out, oldest first; none where this project never moved it."""
    moves = _noted(client, name)
    champion = champion_of(client, name)
    present = str(champion.version) if champion is not None else None
    found = [*(move.before for move in moves[1:]), present][: len(moves)]  # where the alias stood after each
    return [move for move, after in zip(moves, found, strict=True) if after == move.version or after != move.before]


def promote(client: MlflowClient, name: str, version: str, why: str = "") -> Move:
    """Make a version (its number) of a model the champion by hand, inside `registry.deciding`.

    A `UserError` where there is no such version, it is champion already, or another program registered it.
    """
    said = f"{name} version {version}"
    found = find_version(client, said, name, None, version)
    champion = champion_of(client, name)
    if champion is not None and champion.version == found.version:
        raise UserError(f"{said}: is the champion already; `shepherd registry list {name}` shows the others")
    if "checkpoint_digest" not in found.tags:
        raise UserError(f"{said}: not registered by this project, so no later model could be compared with it")
    return crown(client, name, str(found.version), "promote", why or "promoted by hand")


def rollback(client: MlflowClient, name: str, why: str = "") -> Move:
    """Give the alias back to the champion before the present one, inside `registry.deciding`.

    Done again, it goes one champion further back; versions that were deleted since are left out. A `UserError` where
    there is no such model, or no champion before this one.
    """
    latest = find_version(client, name, name, None, "latest")
    champion = champion_of(client, name)
    target = _champion_before(client, name, champion)
    if target is None:
        present = f"version {champion.version} is its first champion" if champion is not None else "it has no champion"
        others = champion is None or str(champion.version) != str(latest.version)
        hint = f"; `shepherd registry promote {name} {latest.version}` makes a version champion by hand"
        raise UserError(f"{name}: {present}, so there is none to go back to{hint if others else ''}")
    return crown(client, name, target, "rollback", why or "rolled back by hand")


def _champion_before(client: MlflowClient, name: str, champion: ModelVersion | None) -> str | None:
    present = str(champion.version) if champion is not None else None
    alive = {str(version.version) for version in versions_of(client, name)}
    reigns = [version for version in _reigns(history(client, name), present) if version in alive]
    return next((version for version in reversed(reigns) if version != present), None)


def _reigns(moves: Sequence[Move], present: str | None) -> list[str]:
    """The champions that a rollback can come back to, the present one last: a promotion adds one, a rollback takes one.

    Whoever moved the alias in MLflow itself left no note; what it was found at is then the next champion.
    """
    reigns: list[str] = []

    def found_at(version: str | None) -> None:
        if version is not None and reigns[-1:] != [version]:
            reigns.append(version)

    for move in moves:
        found_at(move.before)
        if move.how == "rollback" and move.version in reigns:
            while reigns[-1] != move.version:
                reigns.pop()
        found_at(move.version)
    found_at(present)
    return reigns


def _noted(client: MlflowClient, name: str) -> list[Move]:
    """Every move that was ever begun, oldest first; a tag that somebody rewrote in MLflow is left out."""
    lines = sorted(_numbered(client.get_registered_model(name).tags).items())
    found = [match.groups() for _, line in lines if (match := LINE.fullmatch(line))]
    return [Move(version, None if before == "none" else before, *rest) for version, before, *rest in found]


def _numbered(tags: Mapping[str, str]) -> dict[int, str]:
    return {int(match[1]): value for key, value in tags.items() if (match := TAG.fullmatch(key))}
