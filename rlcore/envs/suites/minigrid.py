"""MiniGrid and BabyAI: rooms of cells, seen from where the agent stands, with a task in words."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.suites.gym import ImportedSuite

log = logging.getLogger(__name__)

# What a cell is described by: its object, its colour, and whether a door is open, closed or locked.
CELL = (11, 6, 3)
# Every word of every mission of MiniGrid 3.2.
VOCABULARY = (
    "a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key "
    "lava left matching must near next object of on open opening pick purple put reach red right room rooms square "
    "the then to traverse unlock up use yellow you your"
)
WORDS = tuple(VOCABULARY.split())


class MissionWords(gymnasium.ObservationWrapper):
    """The mission as numbers: key `mission`, 1 for each of `WORDS` that occurs; the last for any other."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        parts = dict(_parts(env))
        self.numbers = {word: number for number, word in enumerate(WORDS)}
        parts["mission"] = spaces.MultiBinary(len(WORDS) + 1)
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The observation with its mission as numbers."""
        row = np.zeros(len(WORDS) + 1, np.int8)
        for word in re.findall(r"\w+", observation["mission"]):
            row[self.numbers.get(word, len(WORDS))] = 1
        return {**observation, "mission": row}


class Cells(gymnasium.ObservationWrapper):
    """The cells in view as zeros and ones: key `image`, of each cell one entry for its object, its colour, its state.

    They are numbers of kinds, which a network that takes them for brightness would have to guess apart.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        parts = dict(_parts(env))
        shape = parts["image"].shape
        assert shape is not None
        parts["image"] = spaces.MultiBinary([*shape[:2], sum(CELL)])
        self.observation_space = spaces.Dict(parts)
        self.rows = [np.eye(count, dtype=np.int8) for count in CELL]

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The observation with its cells [height, width, 20] int8."""
        cells = observation["image"]
        drawn = [rows[cells[..., part]] for part, rows in enumerate(self.rows)]
        return {**observation, "image": np.concatenate(drawn, -1)}


class MiniGridSuite(ImportedSuite):
    """Ids of MiniGrid and BabyAI; `env.wrapper.pixels=true` gives key `image` as a picture, 8 pixels a cell."""

    def __init__(self) -> None:
        super().__init__(
            "MiniGrid-|BabyAI-",
            "minigrid",
            "minigrid.",
            "minigrid",
            ("minigrid",),
            "minigrid",
            "resumed by replaying the open episode",
        )

    def ids(self) -> list[str]:
        """Ids of which there is no newer version."""
        newest = {env_id.rpartition("-v")[0]: env_id for env_id in super().ids()}  # in the order of their versions
        return list(newest.values())

    def has(self, env_id: str) -> bool:
        """Tell whether it has an id; those of wave function collapse lack the patterns that their package left out."""
        return not env_id.startswith("MiniGrid-WFC-") and super().has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """A room, its observations as numbers."""
        others = {key: value for key, value in arguments.items() if key != "pixels"}
        env = super().make(env_id, others, render_mode)
        # It prints every draft of a mission that it throws away.
        vars(importlib.import_module("minigrid.envs.babyai.core.roomgrid_level"))["print"] = _note
        if arguments.get("pixels"):
            return MissionWords(importlib.import_module("minigrid.wrappers").RGBImgPartialObsWrapper(env))
        return MissionWords(Cells(env))


def _parts(env: gymnasium.Env) -> Mapping[str, spaces.Space[Any]]:
    space = env.observation_space
    assert isinstance(space, spaces.Dict)
    return space.spaces


def _note(*words: Any) -> None:
    log.debug("MiniGrid: %s", " ".join(map(str, words)))
