"""Crafter by SheepRL's ids: with its reward, and without."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from rlcore.envs.suites.suite import DECIDED_ELSEWHERE, Suite
from rlcore.types import State

IDS = {"crafter_reward": True, "crafter_nonreward": False}


class CrafterSuite(Suite):
    """The two of them; everything that a seed decides is made so, and saved (`game.py` says how)."""

    name = "crafter"
    extra = "crafter"
    requires = "crafter"
    packages = ("crafter",)
    note = "with and without reward; seeded and saved exactly, which it is not by itself"
    targets = ("sheeprl.envs.crafter.CrafterWrapper",)
    engines = ("Crafter.game",)
    decided = (*DECIDED_ELSEWHERE, "seed", "reward")
    from_keys = {"screen_size": "screen_size"}  # noqa: RUF012 - read only

    def ids(self) -> Sequence[str]:
        """SheepRL's."""
        return tuple(IDS)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """A game."""
        return self.source(env_id)(IDS[env_id], **arguments, render_mode=render_mode)

    def source(self, env_id: str) -> Any:
        """The class of both."""
        return _game().Crafter

    def capture(self, env: gymnasium.Env) -> State:
        """The game's world, its creatures and its generator."""
        playing: Any = env
        return _game().capture_game(playing.game)

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Put the game where it was captured."""
        playing: Any = env
        _game().restore_game(playing.game, state)


def _game() -> Any:
    """The module that imports Crafter; an ImportError where it is missing."""
    return importlib.import_module("rlcore.envs.suites.crafter.game")
