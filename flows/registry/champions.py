"""Present and former champions of a registered model, and the reasons why they became champion.

The champion is the version with the MLflow alias `champion`, usually the best one. Only `set_champion` moves the alias.
MLflow does not store which versions an alias pointed to. The history is therefore stored in tags of the registered
model, one tag for each move: `champion.0001`, `champion.0002`, ... MLflow's page of the model shows them. The tag is
written before the alias is moved, so there is a stored reason for every champion. If the process is killed between
these two steps, the alias has not moved, and `history` ignores the tag.
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
WHY_LIMIT = 1000  # characters; MLflow's limit for a tag is 5,000


class Move(NamedTuple):
    """Move of the alias `champion` from one version of a registered model to another one.

    Attributes:
        version: number of the version that became champion.
        before: number of the version that was champion before; None if the model had no champion.
        how: "gate" if the version won the automatic comparison after training; "promote" or "rollback" if a user ran
            `shepherd registry promote` or `shepherd registry rollback`.
        by: the user of the process that moved the alias.
        when: time of the move in UTC, ISO 8601, to the second.
        why: the reason as a sentence.
    """

    version: str
    before: str | None
    how: str
    by: str
    when: str
    why: str


def set_champion(client: MlflowClient, name: str, version: str, how: str, why: str) -> Move:
    """Move the alias `champion` of a model to a version, store the move in a tag of the model, and return it.

    Call this function inside the lock `registry.deciding`. The reason `why` is cut to `WHY_LIMIT` characters.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    move = Move(version, _present(client, name), how, user(), now, why[:WHY_LIMIT])
    number = max(_number(client.get_registered_model(name).tags), default=0) + 1
    line = f"version {version} after {move.before or 'none'} | {how} by {move.by} | {now} | {move.why}"
    client.set_registered_model_tag(name, f"champion.{number:04}", line)
    client.set_registered_model_alias(name, CHAMPION, version)
    return move


def history(client: MlflowClient, name: str) -> list[Move]:
    """Return the completed moves of the alias `champion` of a model, oldest first.

    They are read from the model's tags. A tag that was not written by `set_champion` is ignored. A tag is also ignored
    if its process was killed before it moved the alias.
    """
    lines = sorted(_number(client.get_registered_model(name).tags).items())
    found = [match.groups() for _, line in lines if (match := LINE.fullmatch(line))]
    moves = [Move(version, None if before == "none" else before, *rest) for version, before, *rest in found]
    stood = [*(move.before for move in moves[1:]), _present(client, name)]  # version of the alias after each move
    return [move for move, after in zip(moves, stood, strict=False) if after == move.version or after != move.before]


def promote(client: MlflowClient, name: str, version: str, why: str = "") -> Move:
    """Move the alias `champion` to a version that the user has chosen, and return the move.

    Call this function inside the lock `registry.deciding`. Raises UserError if the version does not exist, is already
    champion, or was registered by another program.
    """
    source = f"{name} version {version}"
    target = find_version(client, source, name, None, version)
    if _present(client, name) == str(target.version):
        raise UserError(f"{source}: is already the champion; `shepherd registry list {name}` lists all versions")
    if tag_value(target.tags, "checkpoint_digest") is None:
        raise UserError(f"{source}: was not registered by Shepherd, so later models could not be compared with it")
    return set_champion(client, name, str(target.version), "promote", why or "promoted by hand")


def rollback(client: MlflowClient, name: str, why: str = "") -> Move:
    """Make the previous champion of a model the champion again and return the move of the alias.

    Each further call goes back by one more champion; deleted versions are skipped. Call this function inside the lock
    `registry.deciding`. Raises UserError if the model does not exist or has no previous champion.
    """
    latest = str(find_version(client, name, name, None, "latest").version)
    present, there = _present(client, name), {str(version.version) for version in versions_of(client, name)}
    before = [version for version in _reigns(history(client, name), present) if version in there - {present}]
    if not before:
        reason = f"version {present} is its first champion" if present else "it has no champion"
        hint = f"; to choose a champion by hand, run `shepherd registry promote {name} {latest}`"
        raise UserError(f"{name}: cannot roll back, because {reason}{hint if present != latest else ''}")
    return set_champion(client, name, before[-1], "rollback", why or "rolled back by hand")


def _present(client: MlflowClient, name: str) -> str | None:
    champion = champion_of(client, name)
    return str(champion.version) if champion is not None else None


def _reigns(moves: Sequence[Move], present: str | None) -> list[str]:
    """Return the versions to which rollbacks can return, oldest first; the present champion is the last element.

    The list is computed from the stored moves of the alias. A rollback removes the last champion from the list; any
    other move appends one. If a user moved the alias with MLflow's own tools, no move was stored. The version to which
    the user moved it is then known from the field `before` of the next stored move, and is appended, too.
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
