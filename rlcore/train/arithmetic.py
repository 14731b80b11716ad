"""Arithmetic of a run, found out by a rehearsal in which every gradient step after the first is only counted."""

from __future__ import annotations

import logging

from rlcore.compiled.cost import RATE_OF_GPU, Arithmetic, Counter
from rlcore.compiled.when_to_compile import on_gpu
from rlcore.compiler import Compiler
from rlcore.config.groups import FabricConfig, RunConfig
from rlcore.spec import EnvSpec
from rlcore.train.fabric import make_fabric
from rlcore.train.loop import Loop
from rlcore.train.warmup import NullRanks, RandomEnvs
from rlcore.types import Context, SingleProcess

log = logging.getLogger(__name__)
ITERATIONS = 20_000  # until something is learned, at most
SAMPLE = 8  # rows of each environment by which the rest of the run is told, at least,
LONGEST = 4_096  # and at most: something is to be learned within


def count(config: RunConfig, spec: EnvSpec) -> Arithmetic | None:
    """Count what a run of this config in such environments is to compute; None where nobody can tell.

    Of the config alone: neither a clock nor what the machine has kept decides.
    """
    ranks = NullRanks(SingleProcess())
    ranks.size = config.fabric.ranks
    counter = Counter()
    compiler = Compiler(config, spec, (config.env.num_envs, ranks.size), once=counter.once)
    context = Context(config, spec, make_fabric(FabricConfig()), ranks, config.env.num_envs, compiler)
    try:
        loop = Loop(context, RandomEnvs(spec, config.env.num_envs, None))
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
    except Exception:  # of somebody's algorithm, over observations that no environment gave
        log.debug("what the run is to compute cannot be counted", exc_info=True)
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


def _iterate(loop: Loop) -> None:
    loop.collect()
    loop.update()
