"""Registry of all suites, including those of plugins: which suite creates the environment of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from rlcore.envs.suites.atari import AtariSuite
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
        REGISTERED,
    )
}


def register(suite: Suite) -> None:
    """Register a suite of a plugin; an earlier suite of the same class (for example before a reload) is replaced.

    Raise UserError if a suite of another class has the same name.
    """
    known = SUITES.get(suite.name)
    # Compare names, because a reloaded module has a new class object.
    if known is not None and type(known).__qualname__ != type(suite).__qualname__:
        raise UserError(
            f"the suite {suite.name!r} of {type(suite).__module__}: this name is taken; choose another name"
        )
    SUITES[suite.name] = suite


def suite_with(env_id: str) -> Suite | None:
    """Return the suite that has an id, or None."""
    return next((suite for suite in SUITES.values() if suite.has(env_id)), None)


def suite_of(env: gymnasium.Env) -> Suite | None:
    """Return the suite of an environment, or None if no suite has the environment's class."""
    spec = env.unwrapped.spec
    return None if spec is None else suite_with(spec.id)


def own_class(wrapper: Mapping[str, Any]) -> OwnClass | None:
    """Return the suite of the user's class that `env.wrapper._target_` names, or None if no such class is named.

    Raise UserError if the package of the class is not a plugin, or if the class does not create environments.
    """
    target = wrapper.get("_target_")
    if target is None or any(target in suite.targets for suite in SUITES.values()):
        return None
    return OwnClass(str(target))


@dataclass(frozen=True)
class Listed:
    """Row of the table of `shepherd envs`: a suite, its extra, its ids, and why some ids cannot be created."""

    name: str
    extra: str
    installed: bool
    ids: tuple[str, ...]
    note: str
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def list_suite(suite: Suite, wanted: Sequence[str] | None = None) -> Listed:
    """Return a suite's row for `shepherd envs`, after some of its ids were created as a test (`Suite.ids_to_try`).

    The row has the ids of the suite, or those in `wanted`.
    """
    here, ids = is_installed(suite), suite.ids() if wanted is None else wanted
    tried = [env_id for env_id in suite.ids_to_try() if env_id in ids] if here else []
    refused = {env_id: why for env_id in tried if (why := why_not(suite, env_id)) is not None}
    ids = tuple(env_id for env_id in ids if env_id not in refused)
    return Listed(suite.name, suite.extra, here, ids, suite.note, refused)
