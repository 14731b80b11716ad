"""Compilation of gradient steps.

`Optimizer` and `Step` contain only eager code. An `Execution` decides if this code or compiled code is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from rlcore.compiled.cuda_graph import RecordedStep
from rlcore.compiled.whole_step import CapturedTensors, CompiledStep, Results, StepFunction
from rlcore.compiler import Compiler
from rlcore.functional.noise import Noise
from rlcore.optim import rules
from rlcore.optim.optimizer_keys import SETTINGS
from rlcore.optim.traced import GradientInputs, MutableState

if TYPE_CHECKING:
    from rlcore.config.run import AlgorithmConfig
    from rlcore.types import Context


class Execution:
    """Gradient step, or computation of a gradient, that is executed as eager or as compiled code.

    A run keeps the mode of its first call, because the results of the two modes differ in the last bits.

    Args:
        eager: the eager code.
        code: object that compiles the function at the first call; None: the function is never compiled.
    """

    # compiled: False if further calls execute the eager code; began: True if the first call was compiled, None if the
    # function was not called yet or is never compiled

    def __init__(self, eager: StepFunction, code: CompiledStep | RecordedStep | CompiledGradient | None) -> None:
        self.eager, self.code = eager, code
        self.compiled = code is not None
        self.began: bool | None = None

    def __call__(self, inputs: Sequence[Any], rng: Noise | None = None) -> Results:
        """Execute the function; compile it first if this is its first call."""
        if not self.compiled or self.code is None:
            return self.eager(inputs, rng)
        if not self.code.built:
            self.began = self.compiled = self.code.build(inputs, rng, bool(self.began))
        return self.code(inputs, rng) if self.compiled else self.eager(inputs, rng)

    def resume(self, began: bool | None) -> None:
        """Restore the mode of an earlier process; `began` is the attribute of that name."""
        if self.compiled and began is not None:
            self.began = self.compiled = began


def compile_step(
    eager: StepFunction,
    function: Callable[..., Any],
    optimizers: Sequence[Any],
    targets: Sequence[Any],
    context: Context[AlgorithmConfig],
    modules: Sequence[nn.Module] = (),
) -> Execution:
    """Return the execution of a gradient step, which is compiled at its first call if the run compiles gradient steps.

    Args:
        eager: the step.
        function: function that `eager` calls; its code is part of the cache key.
        optimizers: all optimizers that the step uses. Their gradients are not compiled separately.
        targets: all target networks that the step updates.
        context: provides the compiler and the ranks; with several ranks, the step is not compiled as a whole.
        modules: modules that the step reads, other than those of the optimizers and target networks.

    Returns:
        The execution.
    """
    compiler = context.compiler
    if compiler is None or context.ranks.size > 1:
        return Execution(eager, None)
    for optimizer in optimizers:
        optimizer.execution.compiled = False
    changed = MutableState(optimizers, targets)
    read = [m for o in optimizers for m in (o.module, *o.uses)] + [t.module for t in targets] + [*modules]
    captured = CapturedTensors(read, [tensor for flat in changed.flat for tensor in flat.tensors])
    if compiler.records:
        return Execution(eager, RecordedStep(eager, changed, captured))
    applied = [(o, rules.RULES[o.config.name]) for o in optimizers]
    settings = [
        [o.config, SETTINGS[o.config.name], r.decoupled, o.max_grad_norm, o.clipping.whole, o.reduction]
        for o, r in applied
    ]
    decides = {"rules": settings, "modules": [*map(repr, read)]} | compiler.facts(function)
    made_of = (function, *read, *(code for o, rule in applied for code in (o.loss, rule.update, o.clipping.factors)))
    return Execution(eager, CompiledStep(eager, changed, captured, compiler, decides, made_of))


def compile_gradient(optimizer: Any, context: Context[AlgorithmConfig]) -> Execution:
    """Return the execution of `optimizer.add_loss`; its gradient is compiled if the run compiles to machine code."""
    compiler = context.compiler
    code = CompiledGradient(optimizer, compiler) if compiler is not None and not compiler.records else None
    return Execution(optimizer.add_loss, code)


class CompiledGradient:
    """Compiled gradient of one optimizer's loss, for gradient steps that are not compiled as a whole.

    This is the case for example in a run with several ranks, because sums over ranks cannot be compiled.

    Args:
        optimizer: the optimizer.
        compiler: compilation settings of the run.
    """

    def __init__(self, optimizer: Any, compiler: Compiler) -> None:
        self._optimizer, self._noise_at = optimizer, list[int]()
        modules = [optimizer.module, *optimizer.uses]
        captured = CapturedTensors(modules, optimizer.parameters.tensors)
        decides = compiler.facts(optimizer.loss) | {"modules": [*map(repr, modules)]}
        made_of = (optimizer.loss, *modules)
        self.code = CompiledStep(
            self._gradient, GradientInputs(optimizer), captured, compiler, decides, made_of, "the gradient"
        )

    @property
    def built(self) -> bool:
        """True if the gradient has been compiled."""
        return self.code.built

    def build(self, inputs: Sequence[Any], rng: Any, began: bool) -> bool:
        """Compile the gradient; arguments and result are those of `CompiledStep.build`.

        The loss is executed once as eager code, also its sums over ranks, and a second time to trace it. The random
        stream, if the loss needs one, is one of `inputs`, and `rng` is None.
        """
        self._noise_at = [at for at, given in enumerate(inputs) if isinstance(given, Noise)]
        return self.code.build(*self._without_noise(inputs), began)

    def __call__(self, inputs: Sequence[Any], rng: Any) -> Results:
        """Add the gradient of a minibatch to the accumulated gradient; return means to log and aux of the loss."""
        gradient, *found = self.code(*self._without_noise(inputs))
        self._optimizer.gradient.add(**gradient)
        return found

    def _without_noise(self, inputs: Sequence[Any]) -> tuple[list[Any], Noise | None]:
        """Return the inputs with None in place of the random stream, and the random stream."""
        rest = [None if at in self._noise_at else given for at, given in enumerate(inputs)]
        return rest, inputs[self._noise_at[0]] if self._noise_at else None

    def _gradient(self, inputs: Sequence[Any], rng: Any) -> Results:
        """Compute the gradient; this function is traced."""
        optimizer = self._optimizer
        found = optimizer.add_loss([rng if at in self._noise_at else given for at, given in enumerate(inputs)])
        gradient, weight = optimizer.gradient.sums()
        return [{"vector": gradient, "weight": weight}, *found]
