"""Which environment `env.id` means, or the sentence that says what exists instead."""

from __future__ import annotations

import re

import gymnasium

from rlcore import plugins
from rlcore.config.schema import nearest
from rlcore.envs.suites.gym import living_ids
from rlcore.errors import UserError

# Namespaces and names by which a user may ask for a suite that this version cannot make.
ABSENT = {
    "ale": "Atari",
    "atari": "Atari",
    "dm_control": "DeepMind Control",
    "minigrid": "MiniGrid",
    "babyai": "MiniGrid",
    "minatar": "MinAtar",
    "meta-world": "Meta-World",
    "crafter": "Crafter",
    "crafterreward": "Crafter",
    "crafternoreward": "Crafter",
    "minedojo": "MineDojo",
    "minerl": "MineRL",
    "diambra": "DIAMBRA",
    "supermariobros": "Super Mario",
    "popgym": "POPGym",
    "phys2d": "JAX physics",
    "tabular": "JAX tables",
}
JAX = ("phys2d", "tabular")  # registered by Gymnasium itself, and absent all the same


def known_id(env_id: str) -> str:
    """The id that `env.id` means as Gymnasium knows it, without the `module:` of a plugin in front.

    A UserError where nothing of that name can be made says what exists instead.
    """
    if env_id not in gymnasium.registry:  # else a process that steps CartPole would load somebody's algorithm
        plugins.load()
    if ":" in env_id:
        module, _, env_id_only = env_id.partition(":")
        if module not in plugins.named():
            raise UserError(
                f"env.id={env_id}: a config may not import code; name the module in the environment variable "
                f"SHEPHERD_PLUGINS={module} and the id as env.id={env_id_only}"
            )
        env_id = env_id_only
    # Atari's old ids have no namespace.
    suite = "atari" if "NoFrameskip" in env_id else re.split(r"[/-]", env_id, maxsplit=1)[0].lower()
    if suite in ABSENT and (env_id not in gymnasium.registry or suite in JAX):
        raise UserError(f"env.id={env_id}: the {ABSENT[suite]} suite is not there yet; `shepherd envs` lists what is")
    living = living_ids()
    if env_id in living:
        return env_id
    name = re.sub(r"-v\d+$", "", env_id)
    versions = [i for i in living if re.sub(r"-v\d+$", "", i) == name]
    if versions:
        newest_first = sorted(versions, key=lambda i: -int(i.rpartition("-v")[2]))
        raise UserError(f"env.id={env_id}: this version does not exist here; use {' or '.join(newest_first)}")
    if env_id in gymnasium.registry:
        raise UserError(f"env.id={env_id}: needs the old Gym interface, which is not there; `shepherd envs` lists ids")
    raise UserError(
        f"env.id={env_id}: no such environment{nearest(env_id, living)} "
        "(`shepherd envs` lists them; SHEPHERD_PLUGINS names modules that register others)"
    )
