"""Registry of all suites, including those of plugins. It finds the suite that creates the environment of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from rlcore.envs.suites.atari import AtariSuite
from rlcore.envs.suites.batched import BatchedSuite
from rlcore.envs.suites.crafter.suite import CrafterSuite
from rlcore.envs.suites.diambra.suite import DiambraSuite
from rlcore.envs.suites.dmc import DMCSuite
from rlcore.envs.suites.dummy import DummySuite
from rlcore.envs.suites.gym import GYMNASIUM, REGISTERED
from rlcore.envs.suites.minigrid import MiniGridSuite
from rlcore.envs.suites.own import OwnClass
from rlcore.envs.suites.small import SmallSuite
from rlcore.envs.suites.suite import Suite, is_installed, why_not
from rlcore.errors import UserError

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        *GYMNASIUM,
        AtariSuite(),
        CrafterSuite(),
        DiambraSuite(),
        DMCSuite(),
        MiniGridSuite(),
        DummySuite(),
        SmallSuite(),
        BatchedSuite(),
        REGISTERED,
    )
}


def register(suite: Suite) -> None:
    """Register a suite of a plugin.

    If a suite with the same name and class is already registered, for example because the plugin was reloaded, it is
    replaced. Raise UserError if a suite of another class has the same name.
    """
    known = SUITES.get(suite.name)
    # Compare names, because a reloaded module has a new class object.
    if known is not None and type(known).__qualname__ != type(suite).__qualname__:
        raise UserError(
            f"the suite {suite.name!r} of {type(suite).__module__}: another suite already has this name; "
            "choose another value for the attribute `name`"
        )
    SUITES[suite.name] = suite


def suite_with(env_id: str) -> Suite | None:
    """Return the suite that contains an environment with the id `env_id`, or None."""
    return next((suite for suite in SUITES.values() if suite.has(env_id)), None)


def suite_of(env: gymnasium.Env) -> Suite | None:
    """Return the suite that contains the id of an environment, or None if no suite contains it."""
    spec = env.unwrapped.spec
    return None if spec is None else suite_with(spec.id)


def own_class(wrapper: Mapping[str, Any]) -> OwnClass | None:
    """Return a suite for the user's class or function that `env.wrapper._target_` names.

    Return None if `_target_` is not set, or if it is a name from SheepRL's files that belongs to a registered suite.
    Raise UserError if the package of the class is not a plugin, or if the class does not create environments.
    """
    target = wrapper.get("_target_")
    if target is None or any(target in suite.targets for suite in SUITES.values()):
        return None
    return OwnClass(str(target))


@dataclass(frozen=True)
class Listed:
    """Row of the table of `shepherd envs`, which describes one suite.

    `extra` is the name of the install extra, `ids` are the ids that can be created, and `refused` maps each other id to
    the reason why it cannot be created.
    """

    name: str
    extra: str
    installed: bool
    ids: tuple[str, ...]
    note: str
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def list_suite(suite: Suite, wanted: Sequence[str] | None = None) -> Listed:
    """Return a suite's row for the table of `shepherd envs`.

    Environments with the ids `Suite.ids_to_try` are created as a test, if the suite is installed.

    Args:
        suite: the suite.
        wanted: ids that the row lists; None: all ids of the suite.

    Returns:
        The row.
    """
    here, ids = is_installed(suite), suite.ids() if wanted is None else wanted
    tried = [env_id for env_id in suite.ids_to_try() if env_id in ids] if here else []
    refused = {env_id: why for env_id in tried if (why := why_not(suite, env_id)) is not None}
    ids = tuple(env_id for env_id in ids if env_id not in refused)
    return Listed(suite.name, suite.extra, here, ids, suite.note, refused)
