"""Stage make-env: check the config against a real instance of the environment and write the environment card.

The card contains measured properties of the environment.
"""

from __future__ import annotations

from typing import Any

from flows.runs.env_card import write_card
from flows.runs.listeners import announce
from rlcore.envs.card import card_once, environment_card
from rlcore.errors import EnvironmentFault, UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory


def make_env(run: RunDirectory) -> dict[str, Any]:
    """Measure the environment and write its measured properties, the environment card.

    The files are env_card.json and env_card.md. Raise a `UserError` if the environment fails.
    """
    return write_card(run, measure(run))


def measure(run: RunDirectory) -> dict[str, Any]:
    """Return the environment card (measured properties) of a run's environment.

    Before a measurement that takes long, report it.
    """
    env = config_of(run).env
    rendered = " with rendered images (up to about 30 s)" if env.image_key is not None else ""
    try:
        with announce(f"make-env: testing {env.id}{rendered}"):
            return environment_card(env)
    except EnvironmentFault as error:
        raise UserError(f"env.id={env.id}: {error}") from error


def measure_once(run: RunDirectory) -> dict[str, Any]:
    """Return the environment card (measured properties) of a run's environment.

    It is measured once per process, and again if something changes on which it depends.
    """
    return card_once(config_of(run).env, lambda: measure(run))
