"""Champions of a registered model, now and before, and why: every move of the alias goes through `crown`.

MLflow forgets where an alias pointed. The history therefore stands in tags of the registered model, a line a move,
which its page shows: `champion.0001`, `champion.0002`, ... The tag is written first and the alias moved then, so that
every champion has its reasons; where a kill came between the two, the alias is still where it was before the move.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flows.registry.models import CHAMPION, champion_of, find_version, versions_of
from flows.tracking.mlflow_store import user
from flows.tracking.tags import tag_value
from rlcore.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = re.compile(r"champion\.(\d+)")
LINE = re.compile(r"version (\d+) after (\d+|none) \| (\w+) by (.+?) \| (\S+) \| (.*)", re.DOTALL)
WHY_LIMIT = 1000  # characters; MLflow takes 5,000 in a tag


class Move(NamedTuple):
    """One move of the alias."""

    version: str  # the new champion
    before: str | None  # the one it took the place of
    how: str  # "gate" (a training's comparison), "promote" or "rollback" (by hand)
    by: str  # the user whose process did it
    when: str  # UTC, ISO 8601, to the second
    why: str  # a sentence


def crown(client: MlflowClient, name: str, version: str, how: str, why: str) -> Move:
    """Make a version of a model the champion, inside `registry.deciding`; the move as noted, `why` cut."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    move = Move(version, _present(client, name), how, user(), now, why[:WHY_LIMIT])
    number = max(_number(client.get_registered_model(name).tags), default=0) + 1
    line = f"version {version} after {move.before or 'none'} | {how} by {move.by} | {now} | {move.why}"
    client.set_registered_model_tag(name, f"champion.{number:04}", line)
    client.set_registered_model_alias(name, CHAMPION, version)
    return move


def history(client: MlflowClient, name: str) -> list[Move]:
    """The moves of a model's alias that were carried out, oldest first, but for lines that somebody rewrote."""
    lines = sorted(_number(client.get_registered_model(name).tags).items())
    found = [match.groups() for _, line in lines if (match := LINE.fullmatch(line))]
    moves = [Move(version, None if before == "none" else before, *rest) for version, before, *rest in found]
    stood = [*(move.before for move in moves[1:]), _present(client, name)]  # where the alias stood after each
    return [move for move, after in zip(moves, stood, strict=False) if after == move.version or after != move.before]


def promote(client: MlflowClient, name: str, version: str, why: str = "") -> Move:
    """Make a version (its number) of a model the champion by hand, inside `registry.deciding`.

    A `UserError` where there is no such version, it is champion already, or another program registered it.
    """
    said = f"{name} version {version}"
    found = find_version(client, said, name, None, version)
    if _present(client, name) == str(found.version):
        raise UserError(f"{said}: is the champion already; `shepherd registry list {name}` shows the others")
    if tag_value(found.tags, "checkpoint_digest") is None:
        raise UserError(f"{said}: not registered by this project, so no later model could be compared with it")
    return crown(client, name, str(found.version), "promote", why or "promoted by hand")


def rollback(client: MlflowClient, name: str, why: str = "") -> Move:
    """Give the alias back to the champion before the present one, inside `registry.deciding`.

    Done again, it goes one champion further back; versions that were deleted since are left out. A `UserError` where
    there is no such model, or no champion before this one.
    """
    latest = str(find_version(client, name, name, None, "latest").version)
    present, there = _present(client, name), {str(version.version) for version in versions_of(client, name)}
    before = [version for version in _reigns(history(client, name), present) if version in there - {present}]
    if not before:
        reason = f"version {present} is its first champion" if present else "it has no champion"
        hint = f"; `shepherd registry promote {name} {latest}` makes a version champion by hand"
        raise UserError(f"{name}: {reason}, so there is none to go back to{hint if present != latest else ''}")
    return crown(client, name, before[-1], "rollback", why or "rolled back by hand")


def _present(client: MlflowClient, name: str) -> str | None:
    champion = champion_of(client, name)
    return str(champion.version) if champion is not None else None


def _reigns(moves: Sequence[Move], present: str | None) -> list[str]:
    """The champions that a rollback can come back to, the present one last: a promotion adds one, a rollback takes one.

    Whoever moved the alias in MLflow itself left no note; what it was found at is then the next champion.
    """
    reigns: list[str] = []

    def add(version: str | None) -> None:
        if version is not None and reigns[-1:] != [version]:
            reigns.append(version)

    for move in moves:
        add(move.before)
        if move.how == "rollback" and move.version in reigns:
            while reigns[-1] != move.version:
                reigns.pop()
        add(move.version)
    add(present)
    return reigns


def _number(tags: Mapping[str, str]) -> dict[int, str]:
    return {int(match[1]): value for key, value in tags.items() if (match := TAG.fullmatch(key))}
