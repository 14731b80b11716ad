"""Settings for the compilation of acting and training steps, shared by all compiled functions of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlcore.spec import EnvSpec


@dataclass(frozen=True)
class Compiler:
    """Compilation settings that all compiled functions of a run share, and inputs of their cache keys.

    Compiled code is cached on disk. The cache key of a function contains its source code and everything else that
    determines the compiled code, such as the config.

    Attributes:
        config: RunConfig of the run.
        spec: observation keys and action of the environments.
        width: (number of environments of this rank, number of ranks).
        prepare: function that is called before the first function is compiled.
        made: names of the functions for which `facts` was called, in the order of the calls.
        records: if True, gradient steps are recorded as CUDA graphs, and nothing is compiled to machine code.
    """

    config: Any
    spec: EnvSpec
    width: tuple[int, int]
    prepare: Callable[[], None] = lambda: None
    made: list[str] = field(default_factory=list)
    records: bool = False

    def facts(self, function: Callable[..., Any] | str) -> dict[str, Any]:
        """Return the inputs of a compiled function's cache key, except its source code.

        `function` is the function or a name for it. Each call appends the name to `made`, the names of all functions
        compiled so far. The key also contains the length of this list, so that functions with the same name have
        different keys.
        """
        if not isinstance(function, str):
            function = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
        self.made.append(function)
        groups = ("algo", "distribution", "env", "fabric", "buffer")
        return {name: repr(getattr(self.config, name)) for name in groups} | {
            "spec": repr(self.spec),
            "width": list(self.width),
            "function": [len(self.made), function],
        }
