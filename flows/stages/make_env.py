"""make-env: hold the config against a real instance of the environment and write its card."""

from __future__ import annotations

from typing import Any

from flows.runs.env_card import write_card
from flows.runs.listeners import emit
from rlcore.envs.card import card_key, environment_card
from rlcore.errors import EnvironmentFault, UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory


def make_env(run: RunDirectory) -> dict[str, Any]:
    """Measure the environment and write env_card.json and env_card.md; a `UserError` where it misbehaves."""
    return write_card(run, measure(run))


def measure(run: RunDirectory) -> dict[str, Any]:
    """The card of a run's environment; tells of what takes long about it."""
    env = config_of(run).env
    if env.image_key is not None:
        emit("stage", {"doing": f"make-env: {env.id} is tried with its pictures, for half a minute at most"})
    try:
        return environment_card(env)
    except EnvironmentFault as error:
        raise UserError(f"env.id={env.id}: {error}") from error


def measure_once(run: RunDirectory) -> dict[str, Any]:
    """The card of a run's environment, measured once in a process where nothing that it depends on has changed."""
    config = config_of(run)
    key = card_key(config.env)
    card = _measured.get(key) or measure(run)
    if key is not None:
        _measured[key] = card
    return card


_measured: dict[str | None, dict[str, Any]] = {}
