"""Update: all gradient steps of an update of the agent, as one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rlcore.compiled.cuda_graph import RecordedStep
from rlcore.compiled.whole_step import Results
from rlcore.functional.noise import SortKeys
from rlcore.optim.step import Step


class Update:
    """All gradient steps of an update of the agent, with the computations before and between them.

    If gradient steps are captured as CUDA graphs, the whole function is captured as one graph at its first call, for
    the shapes of its inputs. The graph has the operations of the function; only loops over time are fused, as in a
    single gradient step. If the function cannot be captured, for example because it has too many operations, each
    gradient step is a graph of its own.

    Args:
        function: Python function that takes gradient steps by calling `step`. Its arguments are the inputs and the
            random stream `rng`, which is a NumPy generator or, in a graph, a stream of sort keys. It returns the means
            to log, name -> [].
        step: the gradient step.
    """

    def __init__(self, function: Callable[..., dict[str, Tensor]], step: Step) -> None:
        self.function, self.step = function, step
        code = step.execution.code
        self.recorded = code.repeated(self._call) if isinstance(code, RecordedStep) else None

    def __call__(self, *inputs: Any, rng: np.random.Generator) -> dict[str, Tensor]:
        """Take all gradient steps of an update, and return the means to log, name -> [].

        `inputs` and `rng` are passed to the function.
        """
        if self.recorded is None or not self.step.compiled:
            return self.function(*inputs, rng=rng)
        keys: Any = SortKeys(rng, self.recorded.device)
        if not self.recorded.built:
            if not self.recorded.build(inputs, keys, False):
                self.recorded = None
                return self.function(*inputs, rng=rng)
            self.step.execution.began = True
        return self.recorded(inputs, keys)[0]

    def _call(self, inputs: Sequence[Any], rng: Any) -> Results:
        """Call the function for a recording, of which the gradient steps become a part; they are not recorded alone."""
        self.step.execution.compiled = False
        try:
            return [self.function(*inputs, rng=rng)]
        finally:
            self.step.execution.compiled = True
