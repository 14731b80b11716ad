"""Step: one gradient step of an algorithm, which may minimize several losses in sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rlcore.compiled.captured import CapturedTensors
from rlcore.compiled.cuda_graph import RecordedStep
from rlcore.compiled.whole_step import CompiledStep
from rlcore.functional.noise import Noise
from rlcore.optim.mutable_state import MutableState
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target

if TYPE_CHECKING:
    from rlcore.types import Context

Means = dict[str, Tensor]  # name -> [], logged quantities


class Step:
    """Function that updates several optimizers and target networks, run eagerly or compiled as a whole.

    The function is ordinary code: `minimize` changes parameters, and the next line uses the changed ones. It is
    compiled to machine code on a CPU, or captured as a CUDA graph on a GPU, for the shapes of its first inputs. With
    several ranks, it runs eagerly, because gradients are summed over ranks in between; on a CPU, the computation of
    each gradient is still compiled.

    Args:
        function: takes the inputs and, if the call passes one, a noise stream `rng`; returns means to log, name -> [].
            It must not branch on the values of tensors.
        optimizers: the optimizers that the function uses.
        targets: the target networks that the function updates.
        context: config, specs, devices and ranks of the run (`rlcore.types.Context`).
        modules: other modules that the function reads. Modules that the optimizers train, or declare in `uses`, need
            not be listed.
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
        self._code: CompiledStep | RecordedStep | None = None
        if compiler is not None and not self.once and context.ranks.size == 1:
            for optimizer in optimizers:
                optimizer.compiled = False  # it is compiled as a part of this step
            changed = MutableState(optimizers, targets)
            read = [m for o in optimizers for m in (o.module, *o.uses)] + [t.module for t in targets] + [*modules]
            captured = CapturedTensors(read, [tensor for flat in changed.flat for tensor in flat.tensors])
            decides: dict[str, Any] = {"rules": [[o.config, o.max_grad_norm, o.reduction] for o in optimizers]}
            decides |= {"modules": [*map(repr, read)]} | compiler.facts(function)
            if compiler.records:
                self._code = RecordedStep(self._call, changed, captured)
            else:
                self._code = CompiledStep(self._call, changed, captured, compiler, decides, (function, *read))
        self.compiled = self._code is not None
        self._began: bool | None = None  # True if the first call was compiled; None if it was not called yet

    def __call__(self, *inputs: Any, rng: Noise | None = None) -> Means:
        """Take the step and return the logged means."""
        if self.once:
            return {**self.once(self, lambda: self._call(inputs, rng))}  # a copy, which the caller may change
        if self.compiled and self._code is not None and not self._code.built:
            self._began = self.compiled = self._code.build(inputs, rng, bool(self._began))
        return self._code(inputs, rng) if self.compiled and self._code is not None else self._call(inputs, rng)

    def _call(self, inputs: Sequence[Any], rng: Any) -> Means:
        return self.function(*inputs) if rng is None else self.function(*inputs, rng=rng)

    @property
    def awaited(self) -> bool:
        """True if the step has not been called yet and will be compiled at its first call."""
        return self.compiled and self._began is None

    def state_dict(self) -> dict[str, Any]:
        """Return the mode of the step (compiled or eager); optimizers, targets and modules store everything else."""
        return {"compiled": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the same mode (compiled or eager) in which the run began."""
        if self.compiled and state["compiled"] is not None:
            self._began = self.compiled = state["compiled"]
