"""Training loop: learner, buffer and collector of one algorithm, run one iteration at a time."""

from __future__ import annotations

import functools

import torch

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.data.steps import transform_reward
from rlcore.errors import RunError, UserError
from rlcore.evaluation.play import OnProgress
from rlcore.functional.noise import Noise
from rlcore.protocols import Buffer, Learner, VectorEnv
from rlcore.system import heap
from rlcore.train.collect import Collector
from rlcore.types import Context, Metrics, TrainingSchedule

TRIMMED = 512  # number of gradient steps after which free heap memory is returned to the system


class Loop:
    """Training loop of every algorithm; an iteration collects, stores and updates.

    Args:
        context: inputs from which the algorithm is built.
        envs: training environments; their spec and number are those of the context.
    """

    def __init__(self, context: Context, envs: VectorEnv) -> None:
        self.context = context
        config, rank, device = context.config, context.ranks.rank, context.fabric.device
        # Layers without an explicit initialization use torch's global generator: seed it equally on every rank.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.integer(config.seed, "init"))
            self.learner, self.buffer, self.plan = _build(context)
        self.behavior_policy = self.learner.behavior_policy
        self.rng = context.generator("minibatch")
        self.collector = Collector(
            envs,
            self.behavior_policy,
            Noise(config.seed, "policy", rank, device=device),
            device,
            context.fabric.autocast,
            functools.partial(transform_reward, config.env),
            context.ranks,
            Noise(config.seed, "prefill", rank),
            context.compiler if context.compiler and context.compiler.builds else None,
        )
        self.iterations, self._due, self._waiting, self._untrimmed = 0, 0, False, 0

    @property
    def env_steps(self) -> int:
        """Number of actions taken so far."""
        return self.collector.env_steps

    @property
    def policy_steps(self) -> int:
        """Number of rows collected so far; the budget is in this unit."""
        return self.collector.policy_steps

    def collect(self) -> None:
        """Take T steps in all environments and add them to the buffer.

        Raises RunError if `update` was not called for the previous rollout.
        """
        if self._waiting:
            raise RunError("call update() before collect(): the previous rollout has not been used")
        before = self.policy_steps
        random = before < self.plan.random_steps
        self.buffer.extend(*self.collector.collect(self.plan.collect_length, random))
        self._due, self._waiting = before, True

    def update(self, on_batch: OnProgress | None = None) -> list[Metrics]:
        """Take a gradient step on each batch that is due.

        Args:
            on_batch: called before each batch with the number of finished batches and the total (`Buffer.due`).

        Returns:
            The metrics of each batch; their tensors have not been read.

        Raises:
            RunError: If nothing was collected since the last update, or a metric is not a single number.
        """
        if not self._waiting:
            raise RunError("call collect() before update(): nothing was collected since the last update")
        self.iterations, self._waiting = self.iterations + 1, False
        metrics, total = [], self.buffer.due(self._due)
        for batch in self.buffer.batches(self._due):
            if on_batch is not None:
                on_batch(len(metrics), total)
            metrics.append(check_metrics(self.learner.update(batch, self.rng)))
        self.learner.sync_weights(self.behavior_policy)
        self._untrimmed += len(metrics)
        if self._untrimmed >= TRIMMED:
            heap.trim()
            self._untrimmed = 0
        return metrics

    def metrics(self) -> Metrics:
        """Return the metrics of buffer, schedule and environments; call it after the updates of an iteration."""
        restarts: int = getattr(self.collector.envs, "restarts", 0)  # a user's own vector has no such attribute
        failed = {"Game/env_restarts": float(restarts)} if restarts else {}
        return check_metrics({**self.buffer.metrics(), **self.plan.metrics(self._due), **failed})


def check_metrics(metrics: Metrics) -> Metrics:
    """Return the metrics of an update; raise a RunError with the name of a metric that is not a single number.

    Only shapes are checked, so that the check does not wait for a device.
    """
    for name, value in metrics.items():
        shape = [*getattr(value, "shape", ())]
        if shape or not hasattr(value, "__float__"):
            what = f"a {type(value).__name__} of shape {shape}" if shape else repr(value)
            raise RunError(f"metric {name!r} is {what}; a metric must be a single number or a tensor of shape []")
    return metrics


def _build(context: Context) -> tuple[Learner, Buffer, TrainingSchedule]:
    """Build learner, buffer and schedule; raise a UserError if one of them does not have the required interface."""
    name = context.config.algo.name
    learner, buffer, plan = ALGORITHMS[name].build(context)
    for part, kind in ((learner, Learner), (buffer, Buffer)):
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
