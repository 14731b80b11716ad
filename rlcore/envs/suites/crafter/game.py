"""Crafter as a deterministic Gymnasium environment, and functions that save and restore the state of a game.

The package Crafter is not deterministic. It stores the creatures of each part of the map in a set and draws random
creatures from this set, but the order of a set depends on memory addresses. This module stores the creatures in an
ordered set instead. The package derives the seed of an episode from the seed of the game and the number of the episode.
In this module, every reset draws a seed from the environment's random generator instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import crafter
import gymnasium
import numpy as np
from crafter import engine, objects
from gymnasium import spaces

from rlcore.envs.plain import decode, encode, restore_in_place
from rlcore.types import State

VIDEO = 256  # side of rendered images in pixels
COUNTERS = ("_step", "_episode", "_seed", "_last_health", "_unlocked")  # attributes of the game
MAPS = ("daylight", "_mat_map", "_obj_map")  # attributes of the world
SHARED = ("world", "random", "player")  # attributes of creatures that refer to objects shared by all of them


class Members(dict[Any, None]):
    """Set that keeps the order of insertion, with the methods that Crafter uses."""

    def __init__(self, members: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(members))

    def add(self, member: Any) -> None:
        """Append a member to this ordered set."""
        self[member] = None

    def remove(self, member: Any) -> None:
        """Remove a member; raise KeyError if it is missing."""
        del self[member]


class World(engine.World):
    """Crafter's map; the creatures of each part of the map are stored in the order of insertion."""

    def reset(self, seed: int | None = None) -> None:
        """Clear the map."""
        super().reset(seed)
        self._chunks = defaultdict(Members)


class Crafter(gymnasium.Env):
    """Game Crafter (Hafner 2021, arXiv:2109.06780), with an image [height, width, 3] uint8 and 17 actions.

    An episode terminates if the player dies, and is truncated after `length` actions.

    Args:
        reward: if False, the reward is always 0.
        screen_size: size of the image in pixels: one number for both sides, or width and height.
        area: size of the map in cells.
        view: size of the visible part of the map in cells, including the rows for the inventory.
        length: time limit in actions.
        render_mode: None, or "rgb_array".

    Attributes:
        metadata: render modes and frame rate, as in Gymnasium.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        reward: bool = True,
        screen_size: int | Sequence[int] | None = 64,
        area: Sequence[int] = (64, 64),
        view: Sequence[int] = (9, 9),
        length: int = 10_000,
        render_mode: str | None = None,
    ) -> None:
        sides = (64, 64) if screen_size is None else np.broadcast_to(screen_size, 2).tolist()
        self.game: Any = crafter.Env(tuple(area), tuple(view), tuple(sides), reward, length, seed=0)
        # The class is replaced instead of the object, because the game's views refer to the object.
        self.game._world.__class__ = World
        self.observation_space = spaces.Box(0, 255, (*sides[::-1], 3), np.uint8)  # rows, columns
        self.action_space = spaces.Discrete(self.game.action_space.n)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in a new world."""
        super().reset(seed=seed)
        self.game._seed, self.game._episode = int(self.np_random.integers(2**31 - 1)), 0
        return self.game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        obs, reward, done, info = self.game.step(int(action))
        dead = info["discount"] == 0
        return obs, float(reward), bool(dead), bool(done and not dead), info

    def render(self) -> Any:
        """Return an image for videos, [256, 256, 3] uint8.

        Crafter draws noise on images of the night with the random generator of the game. The state of the generator is
        therefore saved before and restored after rendering.
        """
        random, sides = self.game._world.random, self.game._size
        state = random.get_state()
        try:
            self.game._size = np.array([VIDEO, VIDEO])
            return self.game.render()
        finally:
            self.game._size = sides
            random.set_state(state)


def capture_game(game: Any) -> State:
    """Return the state of a game as arrays and JSON scalars, without changing the game."""
    world = game._world
    places = {id(creature): place for place, creature in enumerate(world._objects) if creature is not None}
    return {
        "counters": encode({name: getattr(game, name) for name in COUNTERS}),
        "maps": encode({name: getattr(world, name) for name in MAPS}),
        "random": encode(world.random),
        "places": len(world._objects),
        "creatures": {
            str(place): {
                "class": type(creature).__name__,
                "hunts": hasattr(creature, "player"),
                "values": encode({name: value for name, value in vars(creature).items() if name not in SHARED}),
            }
            for place, creature in enumerate(world._objects)
            if creature is not None
        },
        "player": places.get(id(game._player)),
        "chunks": {
            str(number): {"corners": np.array(corners), "members": np.array([places[id(m)] for m in members], np.int64)}
            for number, (corners, members) in enumerate(world._chunks.items())
        },
    }


def restore_game(game: Any, state: State) -> None:
    """Restore a state from `capture_game` in a game."""
    world = game._world
    for owner, part in ((game, "counters"), (world, "maps")):
        for name, value in decode(state[part]).items():
            setattr(owner, name, value)
    restore_in_place(world.random, state["random"])
    world._objects = [None] * state["places"]
    for place, saved in state["creatures"].items():
        kind = getattr(objects, saved["class"])
        creature = kind.__new__(kind)
        vars(creature).update(decode(saved["values"]), world=world, random=world.random)
        world._objects[int(place)] = creature
    game._player = None if state["player"] is None else world._objects[state["player"]]
    for place, saved in state["creatures"].items():
        if saved["hunts"]:
            world._objects[int(place)].player = game._player
    world._chunks = defaultdict(Members)
    for number in range(len(state["chunks"])):
        saved = state["chunks"][str(number)]
        members = [world._objects[place] for place in saved["members"]]
        world._chunks[tuple(saved["corners"].tolist())] = Members(members)
