"""Construction of an algorithm's learner, buffer and schedule, and checks of their interfaces."""

from __future__ import annotations

import torch

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.config.algorithm import AlgorithmConfig
from rlcore.errors import RunError, UserError
from rlcore.protocols import Buffer, Learner
from rlcore.types import Context, Metrics, TrainingSchedule


def build_algorithm(context: Context[AlgorithmConfig]) -> tuple[Learner, Buffer, TrainingSchedule]:
    """Build learner, buffer and schedule; raise a UserError if one of them does not have the required interface."""
    name = context.config.algo.name
    # Layers without an explicit initialization use torch's global generator: seed it equally on every rank.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.integer(context.config.seed, "init"))
        learner, buffer, plan = ALGORITHMS[name].build(context)
    kinds: list[tuple[object, type]] = [(learner, Learner), (buffer, Buffer)]  # a plugin may return anything
    for part, kind in kinds:
        if not isinstance(part, kind):
            raise UserError(
                f"algo.name={name}: {type(part).__name__} is not a subclass of rlcore.protocols.{kind.__name__}; "
                "derive the class from it (docs/your_own_algorithm.md)"
            )
    parts = learner.components()
    if missing := [part for part in ("agent", *learner.transferable_components) if part not in parts]:
        raise UserError(
            f"algo.name={name}: components() of its learner must have {missing[0]!r}, but has only {', '.join(parts)}"
        )
    return learner, buffer, plan


def check_metrics(metrics: Metrics) -> Metrics:
    """Return the argument unchanged; raise a RunError with the name of a metric that is not a single number.

    Only shapes are checked, not values, so that the check does not wait for computations on a GPU.
    """
    for name, value in metrics.items():
        shape = [*getattr(value, "shape", ())]
        if shape or not hasattr(value, "__float__"):
            what = f"a {type(value).__name__} of shape {shape}" if shape else repr(value)
            raise RunError(f"metric {name!r} is {what}; a metric must be a single number or a tensor of shape []")
    return metrics
