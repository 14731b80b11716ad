"""Step: one gradient step of an algorithm, of several losses in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rlcore.compiled.cuda_graph import RecordedStep
from rlcore.compiled.held import Held
from rlcore.compiled.whole_step import WholeStep
from rlcore.functional.noise import Noise
from rlcore.optim.changed import Changed
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target

if TYPE_CHECKING:
    from rlcore.types import Context

Means = dict[str, Tensor]  # name -> [], for the log


class Step:
    """A function that takes steps of several optimizers and moves targets, called as it is written or compiled whole.

    The function is written as if nothing of a compiler were known: `minimize` changes parameters, and the next line
    computes with the changed ones. Machine code, or on a GPU a CUDA graph, is made for the shapes of the first inputs.
    With several ranks, whose gradients are summed between, it is called as it is; the CPU's gradients are compiled.

    Args:
        function: of inputs and, where the call names one, a stream of noise `rng`; gives means for the log, name -> [].
            It may not depend on values.
        optimizers: whose steps it takes.
        targets: that it moves.
        context: what the algorithm is built from.
        modules: others whose parameters or buffers it reads, beside those that the optimizers train or name.
    """

    def __init__(
        self,
        function: Callable[..., Means],
        optimizers: Sequence[Optimizer],
        targets: Sequence[Target],
        context: Context,
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self.function, compiler = function, context.compiler
        self.once = compiler and compiler.once
        self._code: WholeStep | RecordedStep | None = None
        if compiler is not None and not self.once and context.ranks.size == 1:
            for optimizer in optimizers:
                optimizer.compiled = False  # it is a part of this one
            changed = Changed(optimizers, targets)
            read = [m for o in optimizers for m in (o.module, *o.uses)] + [t.module for t in targets] + [*modules]
            held = Held(read, [tensor for flat in changed.flat for tensor in flat.tensors])
            decides: dict[str, Any] = {"rules": [[o.config, o.max_grad_norm, o.reduction] for o in optimizers]}
            decides |= {"modules": [*map(repr, read)]} | compiler.facts(function)
            if compiler.records:
                self._code = RecordedStep(self._call, changed, held)
            else:
                self._code = WholeStep(self._call, changed, held, compiler, decides, (function, *read))
        self.compiled = self._code is not None
        self._began: bool | None = None  # compiled, where it was to be; None: it has not begun

    def __call__(self, *inputs: Any, rng: Noise | None = None) -> Means:
        """Take the step; the means for the log."""
        if self.once:
            return {**self.once(self, lambda: self._call(inputs, rng))}  # whose it is may take some out
        if self.compiled and self._code is not None and not self._code.built:
            self._began = self.compiled = self._code.build(inputs, rng, bool(self._began))
        return self._code(inputs, rng) if self.compiled and self._code is not None else self._call(inputs, rng)

    def _call(self, inputs: Sequence[Any], rng: Any) -> Means:
        return self.function(*inputs) if rng is None else self.function(*inputs, rng=rng)

    @property
    def awaited(self) -> bool:
        """True where the step is to be compiled, and has not been called yet."""
        return self.compiled and self._began is None

    def state_dict(self) -> dict[str, Any]:
        """In which way steps are computed; what they change is in the states of optimizers, targets and modules."""
        return {"compiled": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the run began."""
        if self.compiled and state["compiled"] is not None:
            self._began = self.compiled = state["compiled"]
