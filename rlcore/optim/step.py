"""Step: a complete gradient step of an algorithm, which can minimize several losses one after the other."""

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
    """Complete gradient step of an algorithm, executed eagerly or as compiled code.

    The step is a Python function that updates networks with one or more optimizers, and target networks. It is written
    like eager code: after `optimizer.minimize(...)`, the following lines use the updated parameters.

    With one rank, the function is compiled to machine code on a CPU, or captured as a CUDA graph on a GPU, for the
    shapes of its first inputs. With several ranks, the function runs eagerly, because it must sum gradients over ranks;
    on a CPU, the computation of each gradient is still compiled.

    Args:
        function: the step. Its arguments are the inputs and, if the caller passes one, a random stream `rng`. It
            returns the means to log, name -> []. It must not branch on the values of tensors.
        optimizers: all optimizers that the function uses.
        targets: all target networks that the function updates.
        context: config, environment spec, devices and ranks of the run (`rlcore.types.Context`).
        modules: further modules that the function reads. The modules that an optimizer trains or has in `uses`, and the
            target networks, are known without being listed.
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
        """Take one gradient step and return the means to log, name -> [].

        `inputs` and `rng` are passed to the function.
        """
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
        """Return the mode of the step (compiled or eager).

        The step has no other state: parameters and optimizer state belong to the modules, optimizers and targets.
        """
        return {"compiled": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the mode (compiled or eager) in which the run began.

        A run does not change its mode, because the results of the two modes differ in the last bits.
        """
        if self.compiled and state["compiled"] is not None:
            self._began = self.compiled = state["compiled"]
