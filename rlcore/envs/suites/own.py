"""Environment classes of the user's own: `env.wrapper._target_: my_package.MyEnv`, as SheepRL's files name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from rlcore import plugins
from rlcore.envs.suites.suite import Suite
from rlcore.errors import UserError

KEY = "env.wrapper._target_"


class OwnClass(Suite):
    """A suite of one class, `target` of one of the plugins; ids are whatever the user calls it.

    A UserError where its package is none of the plugins, or it is no class of gymnasium.Env.
    """

    name = "your own class"
    decided = ("_target_", "_convert_", "_recursive_")

    def __init__(self, target: str) -> None:
        self.target, found = target, plugins.member(KEY, target)
        # No function either: a config from elsewhere would choose among all that a plugin has, `subprocess.run` maybe.
        if not (isinstance(found, type) and issubclass(found, gymnasium.Env)):
            raise UserError(f"{KEY}={target}: this is no class of gymnasium.Env")
        self.own = found

    def ids(self) -> tuple[str, ...]:
        """None that could be listed."""
        return ()

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """An object of the class."""
        # A class that cannot be drawn need not know the argument.
        drawn = {} if render_mode is None else {"render_mode": render_mode}
        return self.own(**{**arguments, **drawn})

    def source(self, env_id: str) -> type[gymnasium.Env]:
        """The class."""
        return self.own

    def parameters(self, env_id: str) -> None:
        """Unknown: the class says itself what it does not take."""
        return

    def place(self, env_id: str) -> str:
        """The key that names the class."""
        return f"{KEY}={self.target}"
