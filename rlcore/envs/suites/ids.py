"""Find the environment that `env.id` means, or the sentence that says what exists instead."""

from __future__ import annotations

import re

import gymnasium

from rlcore import plugins
from rlcore.config.values import nearest
from rlcore.envs.suites.gym import entry
from rlcore.envs.suites.registry import SUITES, suite_with
from rlcore.errors import UserError

# Namespaces and names by which a user may ask for a suite that this version cannot make.
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
    """The id that `env.id` means as its suite knows it, without the `module:` of a plugin in front.

    A UserError where nothing of that name can be made says what exists instead.
    """
    if suite_with(env_id) is not None:  # else a process that steps CartPole would load somebody's algorithm
        return env_id
    plugins.load()
    if ":" in env_id:
        module, _, env_id_only = env_id.partition(":")
        if module not in plugins.list_named():
            raise UserError(
                f"env.id={env_id}: a config may not import code; name the module in the environment variable "
                f"SHEPHERD_PLUGINS={module} and the id as env.id={env_id_only}"
            )
        env_id = env_id_only
    if suite_with(env_id) is not None:
        return env_id
    suite = re.split(r"[/-]", env_id, maxsplit=1)[0].lower()
    if suite in ABSENT:
        raise UserError(f"env.id={env_id}: the {ABSENT[suite]} suite is not there yet; `shepherd envs` lists what is")
    raise UserError(f"env.id={env_id}: {_instead_of(env_id)}")


def _instead_of(env_id: str) -> str:
    """Ids that a user may have meant by an id that nobody has."""
    living = [known for suite in SUITES.values() for known in suite.ids()]
    name = re.sub(r"-v\d+$", "", env_id)
    versions = [known for known in living if re.sub(r"-v\d+$", "", known) == name]
    if versions:
        newest_first = sorted(versions, key=lambda known: -int(known.rpartition("-v")[2]))
        return f"this version does not exist here; use {' or '.join(newest_first)}"
    if env_id in gymnasium.registry and not entry(gymnasium.registry[env_id]).startswith("ale_py."):
        return "needs the old Gym interface, which is not there; `shepherd envs` lists ids"
    return (
        f"no such environment{nearest(env_id, living)} "
        "(`shepherd envs` lists them; SHEPHERD_PLUGINS names modules that register others)"
    )
