"""MiniGrid and BabyAI: grid worlds in which the agent sees a part of the grid and a mission in words."""

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

# Numbers of possible objects, colors and states (open, closed, locked) of a cell.
CELL = (11, 6, 3)
# Every word of every mission of MiniGrid 3.2.
VOCABULARY = (
    "a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key "
    "lava left matching must near next object of on open opening pick purple put reach red right room rooms square "
    "the then to traverse unlock up use yellow you your"
)
WORDS = tuple(VOCABULARY.split())


class MissionWords(gymnasium.ObservationWrapper):
    """Wrapper that encodes the key `mission` as a bag of words.

    The vector has one entry for each word of `WORDS`, and one for all other words.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        parts = dict(_parts(env))
        self.numbers = {word: number for number, word in enumerate(WORDS)}
        parts["mission"] = spaces.MultiBinary(len(WORDS) + 1)
        self.observation_space = spaces.Dict(parts)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Encode the mission as [54] int8."""
        row = np.zeros(len(WORDS) + 1, np.int8)
        for word in re.findall(r"\w+", observation["mission"]):
            row[self.numbers.get(word, len(WORDS))] = 1
        return {**observation, "mission": row}


class Cells(gymnasium.ObservationWrapper):
    """Wrapper that one-hot encodes object, color and state of each visible cell (key `image`).

    MiniGrid encodes them as category numbers, which a network would interpret as brightness.
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
        """Encode the visible cells as [height, width, 20] int8."""
        cells = observation["image"]
        drawn = [rows[cells[..., part]] for part, rows in enumerate(self.rows)]
        return {**observation, "image": np.concatenate(drawn, -1)}


class MiniGridSuite(ImportedSuite):
    """Suite of MiniGrid and BabyAI. With `env.wrapper.pixels=true`, `image` is a picture with 8 pixels per cell."""

    def __init__(self) -> None:
        super().__init__(
            "MiniGrid-|BabyAI-",
            "minigrid",
            "minigrid.",
            "minigrid",
            ("minigrid",),
            "minigrid",
            "on resume, the unfinished episode is replayed",
        )

    def ids(self) -> list[str]:
        """Return the newest version of each id."""
        newest = {env_id.rpartition("-v")[0]: env_id for env_id in super().ids()}  # ids are sorted by version
        return list(newest.values())

    def has(self, env_id: str) -> bool:
        """Return True if the suite has an id; ids of wave function collapse are excluded: they need extra files."""
        return not env_id.startswith("MiniGrid-WFC-") and super().has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment whose observations are numeric."""
        others = {key: value for key, value in arguments.items() if key != "pixels"}
        env = super().make(env_id, others, render_mode)
        # BabyAI prints every rejected mission to stdout; log it instead.
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
