"""The environment card in a run directory: env_card.json, and env_card.md for readers."""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from rlcore.envs.card import readable_card, warn_of_boundary
from rlcore.envs.drawing import DrawnImage
from rlcore.spec import EnvSpec
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json


def write_card(run: RunDirectory, card: dict[str, Any]) -> dict[str, Any]:
    """Write a measured or cached environment card, and report its warnings and notices."""
    warn_of_boundary(card)
    for notice in config_of(run).algo.env_notices(EnvSpec.from_json(card["spec"])):
        emit("stage", {"doing": notice})
    if DrawnImage.__name__ in card["layers"]:
        key, env_id = card["settings"]["image_key"], card["id"]
        notice = f"algo.cnn_keys has {key}, which {env_id} does not provide: an image is rendered at every step"
        emit("stage", {"doing": notice})
    (run.path / "env_card.md").write_text(readable_card(card))
    write_json(run.card, card)
    return {"env_card": str(run.card)}
