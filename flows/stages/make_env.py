"""make-env: hold the config against a real instance of the environment and write its card."""

from __future__ import annotations

from typing import Any

from rlcore.envs.card import environment_card, readable_card, warn_of_boundary
from rlcore.errors import EnvironmentFault, UserError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.run_config import config_of


def make_env(run: RunDirectory) -> dict[str, Any]:
    """Measure the environment and write env_card.json and env_card.md; a `UserError` where it misbehaves."""
    config = config_of(run)
    try:
        card = environment_card(config.env, config.seed)
    except EnvironmentFault as error:
        raise UserError(f"env.id={config.env.id}: {error}") from error
    write_card(run, card)
    return {"env_card": str(run.card)}


def write_card(run: RunDirectory, card: dict[str, Any]) -> None:
    """Write a card, measured now or earlier from the same content, and say what a user must know of it."""
    warn_of_boundary(card)
    (run.path / "env_card.md").write_text(readable_card(card))
    write_json(run.card, card)
