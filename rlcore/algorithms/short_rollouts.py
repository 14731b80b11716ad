"""Preparing a rollout as machine code, loop over its rows and all, where that is most of an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from rlcore.compiled.door import Compiler
from rlcore.compiled.function import CompiledFunction
from rlcore.data.rollout import Samples
from rlcore.data.steps import batch_of, tensors_of
from rlcore.types import Batch, Context

ROWS = 16  # of longer ones preparing is a twentieth of an update, and to compile the loop takes minutes
Prepare = Callable[[Batch], Samples]


def compiled_where_short(prepare: Prepare, modules: Sequence[nn.Module], context: Context) -> Prepare:
    """`prepare`, compiled where the run is compiled and its rollouts are short.

    Args:
        prepare: of the batch's tensors and the modules alone; nothing else that it reads may change.
        modules: whose parameters and buffers it reads.
        context: of the run.

    Returns:
        Of the same batches the same samples, but for rounding.
    """
    short = context.config.algo.rollout_steps <= ROWS
    return _Compiled(prepare, modules, context.compiler) if context.compiler and short else prepare


class _Compiled:
    def __init__(self, prepare: Prepare, modules: Sequence[nn.Module], compiler: Compiler) -> None:
        self.prepare = prepare
        self._function = CompiledFunction("preparing a rollout", self._of_tensors, modules, compiler, [prepare])
        self._keys: tuple[list[str], list[str]] = [], []

    def __call__(self, batch: Batch) -> Samples:
        self._keys = list(batch.steps.obs), list(batch.steps.extras)
        return Samples._make(self._function(*tensors_of(batch)))

    def _of_tensors(self, *given: Tensor) -> Samples:
        return self.prepare(batch_of(*self._keys, given))
