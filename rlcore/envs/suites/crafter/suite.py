"""Suite of Crafter, with SheepRL's ids: with and without reward."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from rlcore.envs.suites.suite import DECIDED_ELSEWHERE, Suite
from rlcore.types import State

IDS = {"crafter_reward": True, "crafter_nonreward": False}


class CrafterSuite(Suite):
    """Suite with two ids: Crafter with and without reward.

    The games are deterministic, and their state can be saved (see `rlcore.envs.suites.crafter.game`).
    """

    name = "crafter"
    extra = "crafter"
    requires = "crafter"
    packages = ("crafter",)
    note = "with and without reward; made deterministic; state saved exactly"
    targets = ("sheeprl.envs.crafter.CrafterWrapper",)
    engines = ("Crafter.game",)
    decided = (*DECIDED_ELSEWHERE, "seed", "reward")
    from_keys = {"screen_size": "screen_size"}  # noqa: RUF012 - read only

    def ids(self) -> Sequence[str]:
        """Return SheepRL's two ids of Crafter."""
        return tuple(IDS)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create a game; its rewards are 0 if the id is the one without reward."""
        return self.source(env_id)(IDS[env_id], **arguments, render_mode=render_mode)

    def source(self, env_id: str) -> Any:
        """Return the environment class, which all ids of the suite share."""
        return _game().Crafter

    def capture(self, env: gymnasium.Env) -> State:
        """Return the state of the game's world, creatures and random generator."""
        playing: Any = env
        return _game().capture_game(playing.game)

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Restore the state of the game."""
        playing: Any = env
        _game().restore_game(playing.game, state)


def _game() -> Any:
    """Return the module that imports Crafter; raise ImportError if Crafter is missing."""
    return importlib.import_module("rlcore.envs.suites.crafter.game")
