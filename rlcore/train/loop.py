"""Learner, buffer and collector of one context, an iteration at a time."""

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

TRIMMED = 512  # updates between two looks at the heap


class Loop:
    """Collect, store, update: every algorithm's iteration.

    Args:
        context: what the algorithm is built from.
        envs: to train in, of the context's spec and number.
    """

    def __init__(self, context: Context, envs: VectorEnv) -> None:
        self.context = context
        config, rank, device = context.config, context.ranks.rank, context.fabric.device
        # Layers that nobody fills are drawn from torch's global generator: by the seed too, on every rank alike.
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
        """Actions taken so far."""
        return self.collector.env_steps

    @property
    def policy_steps(self) -> int:
        """Rows collected so far, by which the budget counts."""
        return self.collector.policy_steps

    def collect(self) -> None:
        """Take T steps in all environments into the buffer; a RunError where the last ones were not learned from."""
        if self._waiting:
            raise RunError("what was collected has not been learned from: update() before collecting again")
        before = self.policy_steps
        random = before < self.plan.random_steps
        self.buffer.extend(*self.collector.collect(self.plan.collect_length, random))
        self._due, self._waiting = before, True

    def update(self, on_batch: OnProgress | None = None) -> list[Metrics]:
        """Improve the agent by the batches that are due.

        Args:
            on_batch: called before each with how many are done, and how many there are (`Buffer.due`).

        Returns:
            The metrics of each, as tensors that nothing has read.

        Raises:
            RunError: nothing was collected since the last update, or a metric is not one number.
        """
        if not self._waiting:
            raise RunError("there is nothing new to learn from: collect() before update()")
        self.iterations, self._waiting = self.iterations + 1, False
        found, total = [], self.buffer.due(self._due)
        for batch in self.buffer.batches(self._due):
            if on_batch is not None:
                on_batch(len(found), total)
            found.append(check_metrics(self.learner.update(batch, self.rng)))
        self.learner.sync_weights(self.behavior_policy)
        self._untrimmed += len(found)
        if self._untrimmed >= TRIMMED:
            heap.trim()
            self._untrimmed = 0
        return found

    def metrics(self) -> Metrics:
        """Numbers that buffer, plan and environments give about an iteration after its updates."""
        restarts: int = getattr(self.collector.envs, "restarts", 0)  # of a vector from outside: none
        failed = {"Game/env_restarts": float(restarts)} if restarts else {}
        return check_metrics({**self.buffer.metrics(), **self.plan.metrics(self._due), **failed})


def check_metrics(metrics: Metrics) -> Metrics:
    """An update's metrics as they are; a RunError where one is not a single number, naming it.

    Whether a number lies on a device does not matter: only its shape is looked at, so nothing waits.
    """
    for name, value in metrics.items():
        shape = [*getattr(value, "shape", ())]
        if shape or not hasattr(value, "__float__"):
            what = f"a {type(value).__name__} of shape {shape}" if shape else repr(value)
            raise RunError(f"metric {name!r} is {what}; an update gives one number a metric, or a tensor []")
    return metrics


def _build(context: Context) -> tuple[Learner, Buffer, TrainingSchedule]:
    """The parts of an algorithm; a UserError where one of them is not made as the core wants it."""
    name = context.config.algo.name
    learner, buffer, plan = ALGORITHMS[name].build(context)
    for part, kind in ((learner, Learner), (buffer, Buffer)):
        if not isinstance(part, kind):
            raise UserError(
                f"algo.name={name}: its {type(part).__name__} is no rlcore.protocols.{kind.__name__}; "
                "derive the class from that (docs/your_own_algorithm.md)"
            )
    parts = learner.components()
    if missing := [part for part in ("agent", *learner.transferable_components) if part not in parts]:
        raise UserError(f"algo.name={name}: its learner's components() has no {missing[0]!r}, only {', '.join(parts)}")
    return learner, buffer, plan
