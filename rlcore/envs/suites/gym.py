"""The suites that come with Gymnasium: classic control, toy text, Box2D, MuJoCo; and plugins of the user."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import gymnasium
from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True)
class Family:
    """What is fixed about a suite.

    Attributes:
        name: as `shepherd envs` prints it.
        package: Gymnasium's module that holds its classes.
        extra: the extra of this project that installs it, "" when it is always there.
        requires: the module whose presence says that the extra is installed.
        note: one line for the reader.
    """

    name: str
    package: str
    extra: str
    requires: str
    note: str


FAMILIES = (
    Family("classic control", "gymnasium.envs.classic_control", "", "", "fast; state saved exactly"),
    Family("toy text", "gymnasium.envs.toy_text", "", "", "small discrete tasks; state saved exactly"),
    Family("box2d", "gymnasium.envs.box2d", "box2d", "Box2D", "resumed by replaying the open episode"),
    Family("mujoco", "gymnasium.envs.mujoco", "mujoco", "mujoco", "resumed by replaying the open episode"),
)

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


@dataclass(frozen=True)
class Suite:
    """One row of `shepherd envs`.

    Attributes:
        name: the suite.
        extra: what `pip install -e '.[extra]'` needs, "" when nothing.
        installed: whether its packages are here.
        ids: the ids that can be made once it is installed.
        note: one line for the reader.
    """

    name: str
    extra: str
    installed: bool
    ids: tuple[str, ...]
    note: str


def suites() -> list[Suite]:
    """Every suite with its ids, then the ids that the user's plugins registered.

    Plugins must have been loaded before (`rlcore.envs.make.load_plugins`).
    """
    rows = []
    for family in FAMILIES:
        ids = tuple(sorted(i for i, spec in gymnasium.registry.items() if _within(spec, family.package)))
        rows.append(Suite(family.name, family.extra, installed(family), ids, family.note))
    own = tuple(sorted(i for i, spec in gymnasium.registry.items() if not _entry(spec).startswith("gymnasium.")))
    if own:
        rows.append(Suite("plugins", "", True, own, "registered by the modules named in SHEPHERD_PLUGINS"))
    return rows


def family_of(env_id: str) -> Family | None:
    """The suite a registered id belongs to; None for an id from elsewhere."""
    spec = gymnasium.registry.get(env_id)
    return next((f for f in FAMILIES if spec is not None and _within(spec, f.package)), None)


def installed(family: Family) -> bool:
    """Whether the package that a suite needs can be imported (found, not imported)."""
    try:
        return not family.requires or importlib.util.find_spec(family.requires) is not None
    except ValueError:  # a module that is there but was blocked: sys.modules[name] is None
        return False


def removed(env_id: str) -> bool:
    """Whether an id is registered only to say that it is gone (MuJoCo v2 and v3, Gym compatibility)."""
    spec = gymnasium.registry.get(env_id)
    return spec is not None and callable(spec.entry_point) and _entry(spec).startswith("gymnasium.envs:")


def _entry(spec: EnvSpec) -> str:
    entry = spec.entry_point
    if isinstance(entry, str):
        return entry
    return f"{getattr(entry, '__module__', '')}:{getattr(entry, '__name__', '')}"


def _within(spec: EnvSpec, package: str) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith(f"{package}.")
