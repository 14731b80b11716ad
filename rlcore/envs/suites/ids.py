"""Resolution of `env.id`, with error messages that suggest existing ids."""

from __future__ import annotations

import re

import gymnasium

from rlcore import plugins
from rlcore.config.values import nearest
from rlcore.envs.suites.gym import entry
from rlcore.envs.suites.registry import SUITES, suite_with
from rlcore.errors import NotSupported, UserError

# Beginning of an id -> its suite, for suites that this version does not support.
ABSENT = {
    "minatar": "MinAtar",
    "meta-world": "Meta-World",
    "minedojo": "MineDojo",
    "minerl": "MineRL",
    "supermariobros": "Super Mario",
    "popgym": "POPGym",
    "phys2d": "JAX physics",
    "tabular": "JAX tables",
}


def known_id(env_id: str) -> str:
    """Return the environment id that `env.id` selects; check that a suite contains this environment.

    If `env.id` has the form `module:id`, in which `module` is a plugin that registers the id, the prefix is removed.
    Raise UserError, with suggestions, if no suite contains the environment.
    """
    if suite_with(env_id) is not None:  # tried first, because then no plugins need to be imported
        return env_id
    plugins.load()
    if ":" in env_id:
        module, _, env_id_only = env_id.partition(":")
        if module not in plugins.list_named():
            raise UserError(
                f"env.id={env_id}: a config cannot import the module {module}; add plugins=[{module}] to the "
                f"command, and use env.id={env_id_only}"
            )
        env_id = env_id_only
    if suite_with(env_id) is not None:
        return env_id
    suite = re.split(r"[/-]", env_id, maxsplit=1)[0].lower()
    if suite in ABSENT:
        raise NotSupported(
            f"env.id={env_id}: the {ABSENT[suite]} suite is not supported yet; `shepherd envs` lists supported suites"
        )
    raise UserError(f"env.id={env_id}: {_instead_of(env_id)}")


def _instead_of(env_id: str) -> str:
    """Return the end of the error message for an unknown id, with suggestions."""
    living = [known for suite in SUITES.values() for known in suite.ids()]
    name = re.sub(r"-v\d+$", "", env_id)
    versions = [known for known in living if re.sub(r"-v\d+$", "", known) == name]
    if versions:
        newest_first = sorted(versions, key=lambda known: -int(known.rpartition("-v")[2]))
        return f"this version is not available; use {' or '.join(newest_first)}"
    if env_id in gymnasium.registry and not entry(gymnasium.registry[env_id]).startswith("ale_py."):
        return "it needs the old Gym API, which is not supported; `shepherd envs` lists the available ids"
    return (
        f"no such environment{nearest(env_id, living)} (`shepherd envs` lists the available ids; to use an id that "
        "your own module registers, add plugins=[module] to the command)"
    )
