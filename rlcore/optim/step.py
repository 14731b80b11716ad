"""Step: a complete gradient step of an algorithm, which can minimize several losses one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rlcore.compiled.whole_step import Results
from rlcore.functional.noise import Noise
from rlcore.optim.compilation import compile_step
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target

if TYPE_CHECKING:
    from rlcore.config.run import AlgorithmConfig
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
            returns the means to log, name -> [], or a tuple (means, aux). `aux` are further tensors, name -> [...];
            after a call, the attribute `aux` contains them. The function must not branch on the values of tensors.
        optimizers: all optimizers that the function uses.
        targets: all target networks that the function updates.
        context: config, environment spec, devices and ranks of the run (`rlcore.types.Context`).
        modules: further modules that the function reads. The modules that an optimizer trains or has in `uses`, and the
            target networks, are known without being listed.
    """

    # aux: further tensors that the function returned in the last call; {} if it returns only means

    def __init__(
        self,
        function: Callable[..., Means | tuple[Means, dict[str, Tensor]]],
        optimizers: Sequence[Optimizer],
        targets: Sequence[Target],
        context: Context[AlgorithmConfig],
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self.function, self.aux = function, dict[str, Tensor]()
        self.execution = compile_step(self._call, function, optimizers, targets, context, modules)

    def __call__(self, *inputs: Any, rng: Noise | None = None) -> Means:
        """Take one gradient step and return the means to log, name -> [].

        `inputs` and `rng` are passed to the function.
        """
        means, self.aux = self.execution(inputs, rng)
        return means

    def _call(self, inputs: Sequence[Any], rng: Any) -> Results:
        found = self.function(*inputs) if rng is None else self.function(*inputs, rng=rng)
        return found if isinstance(found, tuple) else (found, {})

    @property
    def compiled(self) -> bool:
        """True if the step is executed as compiled code; before the first call: if it will be, unless this fails."""
        return self.execution.compiled

    @property
    def awaited(self) -> bool:
        """True if the step has not been called yet and will be compiled at its first call."""
        return self.compiled and self.execution.began is None

    def state_dict(self) -> dict[str, Any]:
        """Return the mode of the step (compiled or eager).

        The step has no other state: parameters and optimizer state belong to the modules, optimizers and targets.
        """
        return {"compiled": self.execution.began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the mode (compiled or eager) in which the run began.

        A run does not change its mode, because the results of the two modes differ in the last bits.
        """
        self.execution.resume(state["compiled"])
