"""All suites by name, those of plugins too: which one `env.id` and `env.wrapper` mean, and what is listed of each."""

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
    """Add a suite from outside, as a plugin does when it is imported; twice the same name is one mistake or a reload.

    A UserError where it takes the name of a suite of another class.
    """
    known = SUITES.get(suite.name)
    # A module that is imported anew brings a class of the same name that is another object.
    if known is not None and type(known).__qualname__ != type(suite).__qualname__:
        raise UserError(f"the suite {suite.name!r} of {type(suite).__module__}: this name is taken; choose another one")
    SUITES[suite.name] = suite


def suite_with(env_id: str) -> Suite | None:
    """The suite that has an id; None where none has it."""
    return next((suite for suite in SUITES.values() if suite.has(env_id)), None)


def suite_of(env: gymnasium.Env) -> Suite | None:
    """The suite that an environment comes from; None of a class that belongs to none."""
    spec = env.unwrapped.spec
    return None if spec is None else suite_with(spec.id)


def own_class(wrapper: Mapping[str, Any]) -> OwnClass | None:
    """The class of a plugin that `env.wrapper` names; None where a suite is to make the environment.

    A UserError where its package is none of the plugins, or it is no class of gymnasium.Env.
    """
    target = wrapper.get("_target_")
    if target is None or any(target in suite.targets for suite in SUITES.values()):
        return None
    return OwnClass(str(target))


@dataclass(frozen=True)
class Listed:
    """One row of `shepherd envs`: `ids` can be made once the `extra` is `installed`; of those `refused`, why not."""

    name: str
    extra: str
    installed: bool
    ids: tuple[str, ...]
    note: str
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def list_suite(suite: Suite, wanted: Sequence[str] | None = None) -> Listed:
    """Return the ids of a suite, or those `wanted`, after trying to make them (`Suite.ids_to_try`)."""
    here, ids = is_installed(suite), suite.ids() if wanted is None else wanted
    tried = [env_id for env_id in suite.ids_to_try() if env_id in ids] if here else []
    refused = {env_id: why for env_id in tried if (why := why_not(suite, env_id)) is not None}
    ids = tuple(env_id for env_id in ids if env_id not in refused)
    return Listed(suite.name, suite.extra, here, ids, suite.note, refused)
