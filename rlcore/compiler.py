"""Settings of the compiler that all functions of a run share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from rlcore.spec import EnvSpec


@dataclass(frozen=True)
class Compiler:
    """Compilation settings, and the inputs of cache keys, that all compiled functions of a run share.

    Attributes:
        config: the whole RunConfig.
        spec: observation keys and action of the environments.
        width: (number of environments of this rank, number of ranks).
        prepare: function that is called before the first function is compiled.
        made: names for which `facts` was called, in this order.
        once: if given (dry run), nothing is compiled: the computation of each name is executed only the first time, and
            later calls are counted. None: functions are compiled, or recorded if `records` is True.
        records: if True, gradient steps are recorded as CUDA graphs, and nothing is compiled to machine code.
    """

    config: Any
    spec: EnvSpec
    width: tuple[int, int]
    prepare: Callable[[], None] = lambda: None
    made: list[str] = field(default_factory=list)
    once: Callable[[Hashable, Callable[[], Any]], Any] | None = None
    records: bool = False

    @property
    def builds(self) -> bool:
        """True if functions are compiled to machine code."""
        return self.once is None and not self.records

    def facts(self, function: Callable[..., Any] | str) -> dict[str, Any]:
        """Return the inputs of a compiled function's cache key, except its source code.

        `function` is the function or a name for it. Each call also appends the name to `made`; the number of calls so
        far is part of the key.
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
