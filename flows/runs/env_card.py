"""Files of the environment card, which contains measured properties of an environment.

A run directory contains it as env_card.json for programs and as env_card.md for readers.
"""

from __future__ import annotations

from typing import Any

from flows.runs.listeners import emit
from rlcore.envs.card import readable_card, refuse_without_action, warn_of_boundary
from rlcore.envs.drawing import DrawnImage
from rlcore.spec import EnvSpec
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json


def write_card(run: RunDirectory, card: dict[str, Any]) -> dict[str, Any]:
    """Write an environment card (measured properties of the environment), and report its warnings and notices.

    `card` is the result of a measurement, or of an earlier measurement that Prefect has cached. Raise UserError if the
    algorithm cannot be trained in the environment, because action masks allow no action.
    """
    refuse_without_action(config_of(run).algo, card)
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
