"""Estimate of the number of torch operations of a run, from a short dry run in random environments.

The dry run executes the first gradient step; further gradient steps are only counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from rlcore.compiled.when_to_compile import RATE_OF_GPU, Arithmetic, on_gpu
from rlcore.config.groups import FabricConfig
from rlcore.config.run import RunConfig
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.spec import EnvSpec
from rlcore.train.components import find_all
from rlcore.train.fabric import make_fabric
from rlcore.train.loop import TrainingLoop
from rlcore.train.warmup import NullRanks, RandomEnvs
from rlcore.types import Context

log = logging.getLogger(__name__)
ITERATIONS = 20_000  # maximum number of iterations before the first gradient step
SAMPLE = 8  # minimum number of rows per environment from which the rest of the run is extrapolated
LONGEST = 4_096  # maximum number of these rows, if none of them leads to a gradient step


def count(config: RunConfig, spec: EnvSpec) -> Arithmetic | None:
    """Estimate the number of gradient steps of a run, and the operations and FLOPs of one gradient step.

    Return None if they cannot be counted, for example because the algorithm fails on random observations. The result
    depends only on the config and the spec, not on a clock or a cache.
    """
    ranks, counter = NullRanks(size=config.fabric.ranks), Counter()
    context = Context(config, spec, make_fabric(FabricConfig()), ranks, config.env.num_envs)
    try:
        loop = TrainingLoop(context, RandomEnvs(spec, config.env.num_envs, None))
        optimizers = find_all(loop.learner, Optimizer)
        for part in (find_all(loop.learner, Step) | optimizers).values():
            part.execution.eager = counter.counted(part.execution.eager)
        for optimizer in optimizers.values():
            optimizer.apply = counter.counted(optimizer.apply)
        for _ in range(ITERATIONS):
            _iterate(loop)
            if loop.learner.updates:
                break
        end = config.algo.budget(config.width)
        first, begun, planned = loop.learner.updates, loop.policy_steps, loop.buffer.count_batches(end)
        if first and begun < end:
            rows = 0
            while rows < SAMPLE or (planned is None and loop.learner.updates == first and rows < LONGEST):
                _iterate(loop)
                rows += loop.plan.collect_length
    except Exception:  # an algorithm may fail on random observations
        log.debug("the operations of the run cannot be counted", exc_info=True)
        return None
    updates, operations, flops = loop.learner.updates, *counter.totals()
    if not updates:
        return None
    if planned is None:
        later = (updates - first) / max(1, loop.policy_steps - begun)
        planned = round(first + later * max(0, end - begun))
    if on_gpu(config):
        return Arithmetic(planned, operations / updates, flops / updates, 0, RATE_OF_GPU)
    return Arithmetic(planned, operations / updates, flops / updates, end // config.width)


def _iterate(loop: TrainingLoop) -> None:
    loop.collect_rollout()
    loop.take_gradient_steps()


class Counter:
    """Counter of the operations of functions, each of which is executed only once."""

    def __init__(self) -> None:
        self._totals: list[list[int]] = []  # per function: operations, floating-point operations, calls
        self._inside = False

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that executes `function` in its first call; later calls return the first result.

        While one counted function is executed, other counted functions are always executed too: their operations are
        a part of its cost.
        """
        results: list[Any] = []
        total = [0, 0, 0]
        self._totals.append(total)

        def once(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            if not results:
                self._inside = True
                try:
                    with _Operations() as operations:
                        results.append(function(*args, **kwargs))
                finally:
                    self._inside = False
                total[:2] = operations.count, operations.flops
            total[2] += 1
            result = results[0]
            return [{**part} for part in result] if isinstance(result, Sequence) else result  # callers may change it

        return once

    def totals(self) -> tuple[int, int]:
        """Return the number of operations and the number of floating-point operations, summed over all calls."""
        return sum(row[0] * row[2] for row in self._totals), sum(row[1] * row[2] for row in self._totals)


class _Operations(TorchDispatchMode):
    """Counter of operations and floating-point operations; torch's `FlopCounterMode` takes 1.5 times as long."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because torch would otherwise import its tracer, which takes two CPU seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found, formula = func(*args, **kwargs), flop_registry.get(func.overloadpacket)
        self.count += 1
        self.flops += formula(*args, **kwargs, out_val=found) if formula else 0
        return found
