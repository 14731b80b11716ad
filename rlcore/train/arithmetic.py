"""Estimate of the number of torch operations of a run, from a short dry run in random environments.

The dry run executes the first gradient step; further gradient steps are only counted.
"""

from __future__ import annotations

import logging

from rlcore.compiled.cost import RATE_OF_GPU, Arithmetic, Counter
from rlcore.compiled.when_to_compile import on_gpu
from rlcore.compiler import Compiler
from rlcore.config.groups import FabricConfig, RunConfig
from rlcore.spec import EnvSpec
from rlcore.train.fabric import make_fabric
from rlcore.train.trainer import Trainer
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
    ranks = NullRanks()
    ranks.size = config.fabric.ranks
    counter = Counter()
    compiler = Compiler(config, spec, (config.env.num_envs, ranks.size), once=counter.once)
    context = Context(config, spec, make_fabric(FabricConfig()), ranks, config.env.num_envs, compiler)
    try:
        trainer = Trainer.from_context(context, RandomEnvs(spec, config.env.num_envs, None))
        for _ in range(ITERATIONS):
            _iterate(trainer)
            if trainer.learner.updates:
                break
        end = config.algo.budget(config.width)
        first, begun, planned = trainer.learner.updates, trainer.policy_steps, trainer.buffer.count_batches(end)
        if first and begun < end:
            rows = 0
            while rows < SAMPLE or (planned is None and trainer.learner.updates == first and rows < LONGEST):
                _iterate(trainer)
                rows += trainer.plan.collect_length
    except Exception:  # an algorithm may fail on random observations
        log.debug("the operations of the run cannot be counted", exc_info=True)
        return None
    updates, operations, flops = trainer.learner.updates, *counter.totals()
    if not updates:
        return None
    if planned is None:
        later = (updates - first) / max(1, trainer.policy_steps - begun)
        planned = round(first + later * max(0, end - begun))
    if on_gpu(config):
        return Arithmetic(planned, operations / updates, flops / updates, 0, RATE_OF_GPU)
    return Arithmetic(planned, operations / updates, flops / updates, end // config.width)


def _iterate(trainer: Trainer) -> None:
    trainer.collect()
    trainer.take_gradient_steps()
