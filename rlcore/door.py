"""The door to the compiler: what one run's functions are made machine code with."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from rlcore.spec import EnvSpec


@dataclass(frozen=True)
class Compiler:
    """Common ground of the functions of one run.

    Attributes:
        config: the whole RunConfig.
        spec: of the environments.
        width: environments of this rank, ranks.
        prepare: called before the first function is built.
        made: the names of those that were asked for, in their order.
        once: does what is called again and again under a name the first time only, and counts it, where nothing is
            made; None = machine code is made.
        records: gradient steps are recorded as CUDA graphs, and no machine code is made.
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
        """True where machine code is made."""
        return self.once is None and not self.records

    def facts(self, function: Callable[..., Any] | str) -> dict[str, Any]:
        """Facts that decide the code of one function, or of a thing of that name, beside the program's own code."""
        if not isinstance(function, str):
            function = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
        self.made.append(function)
        groups = ("algo", "distribution", "env", "fabric", "buffer")
        return {name: repr(getattr(self.config, name)) for name in groups} | {
            "spec": repr(self.spec),
            "width": list(self.width),
            "function": [len(self.made), function],
        }
