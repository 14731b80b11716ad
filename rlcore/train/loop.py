"""Learner, collector and buffer, trained one iteration at a time: everything that determines the bits of a training.

An iteration collects a rollout, adds it to the buffer, and takes a gradient step on each batch that is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlcore import streams
from rlcore.config.run import AlgorithmConfig
from rlcore.errors import RunError
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import differing_shapes
from rlcore.protocols import VectorEnv
from rlcore.store import checkpoint
from rlcore.store.retry import retry
from rlcore.system import heap
from rlcore.system.torch_switches import read_switches
from rlcore.train.collect import Collector
from rlcore.train.components import build_algorithm, parts_of_this_rank, with_parts
from rlcore.train.fabric import refuse_changed_switches
from rlcore.train.metrics import MetricsWindow, check_metrics
from rlcore.types import Context, Episode, Metrics, State, Trajectory

OnIteration = Callable[[list[Metrics]], bool]
TRIMMED = 512  # number of gradient steps after which free heap memory is returned to the system


class TrainingLoop:
    """Learner, buffer and collector of one process.

    Args:
        context: inputs of the algorithm: config, spec of the environments, device, ranks and compiler. The config, the
            resources of the machine and torch's global switches are not checked (`rlcore.train.trainer` does that).
        envs: vectorized environment, whose spec and number are those of the context.
    """

    def __init__(self, context: Context[AlgorithmConfig], envs: VectorEnv) -> None:
        self.context, self.config, self.envs = context, context.config, envs
        self.fabric, self.ranks = context.fabric, context.ranks
        self.learner, self.buffer, self.plan = build_algorithm(context)
        self.behavior_policy = self.learner.behavior_policy
        self.rng = context.generator("minibatch")
        self.collector = Collector.from_context(context, envs, self.behavior_policy)
        self.iterations, self._due, self._waiting, self._untrimmed = 0, 0, False, 0

    @property
    def env_steps(self) -> int:
        """Number of actions taken so far by all ranks."""
        return self.collector.env_steps

    @property
    def policy_steps(self) -> int:
        """Number of rows that all ranks collected so far; the budget is in this unit."""
        return self.collector.policy_steps

    def refuse_unused_rollout(self) -> None:
        """Raise a RunError if `update` was not called for the previous rollout."""
        if self._waiting:
            raise RunError("call update() before collect(): the previous rollout has not been used")

    def restart_envs(self, env_config: Mapping[str, Any]) -> None:
        """Start new episodes with other parameters (`VectorEnv.restart`) before the next rollout."""
        self.refuse_unused_rollout()
        self.collector.arrival = self.envs.restart(env_config, self.policy_steps)

    def collect_rollout(self) -> tuple[Trajectory, Trajectory]:
        """Collect one rollout, `algo.collect_length` steps in all environments, and add it to the buffer.

        Returns:
            The rollout [T, B] and the time step after it; the next call overwrites their memory.
        """
        self.refuse_unused_rollout()
        switches, before = read_switches(), self.policy_steps
        random = before < self.plan.random_steps
        actions = self.env_steps if self.ranks.size > 1 else 0
        steps, last = self.collector.collect(self.plan.collect_length, random)
        self.buffer.extend(steps, last)
        if self.ranks.size > 1:  # all ranks have the same number of rows, but not of actions
            self.collector.env_steps = actions + int(self.ranks.sum(torch.tensor(self.env_steps - actions)))
            self.collector.policy_steps = before + (self.policy_steps - before) * self.ranks.size
        self._due, self._waiting = before, True
        refuse_changed_switches(switches)
        return steps, last

    def take_gradient_steps(self, on_batch: OnProgress | None = None) -> list[Metrics]:
        """Take a gradient step on each batch that is due, and return the metrics, which may still be tensors on a GPU.

        The caller checks that the metrics are finite (`read_metrics`), which waits for the GPU.
        """
        if not self._waiting:
            raise RunError(
                "call collect() before update(): no rollout was collected since the last update (collect(greedy=True) "
                "only returns statistics, and does not collect data for an update)"
            )
        self.iterations, self._waiting = self.iterations + 1, False
        metrics, total = [], self.buffer.due(self._due)
        for batch in self.buffer.batches(self._due):
            if on_batch is not None:
                on_batch(len(metrics), total)
            metrics.append(check_metrics(self.learner.update(batch, self.rng)))
        if metrics:
            self.learner.sync_weights(self.behavior_policy)
        self._untrimmed += len(metrics)
        if self._untrimmed >= TRIMMED:
            heap.trim()
            self._untrimmed = 0
        return metrics

    def advance(self, until: int, on_iteration: OnIteration, on_batch: OnProgress | None = None) -> None:
        """Run iterations until at least `until` policy steps are taken.

        Args:
            until: number of policy steps since the start of training.
            on_iteration: called after each iteration with the metrics of its gradient steps, which may still be tensors
                on a GPU. If it returns True, the loop ends.
            on_batch: called before each gradient step with the number of finished batches of the iteration and their
                total.
        """
        while self.policy_steps < until:
            self.collect_rollout()
            if on_iteration(self.take_gradient_steps(on_batch)):
                return

    # Metrics ----------------------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Return the metrics of buffer, schedule and environments; call it after the updates of an iteration."""
        restarts = self.envs.restarts
        failed = {"Game/env_restarts": float(restarts)} if restarts else {}
        return check_metrics({**self.buffer.metrics(), **self.plan.metrics(self._due), **failed})

    def read_metrics(
        self, metrics: list[Metrics], updates: int, episodes: Sequence[Episode] = ()
    ) -> dict[str, list[float]]:
        """Convert metrics to Python numbers, and return name -> values; raise a RunError if one is not finite."""
        window = MetricsWindow(self.config.metric)
        window.start_updates = updates
        window.add(metrics, episodes)
        return window.check_finite(self.policy_steps, self.learner.updates)

    def mean_metrics(
        self, metrics: list[Metrics], episodes: Sequence[Episode], updates: int | None = None
    ) -> dict[str, float]:
        """Return the means over an iteration as numbers; raise a RunError if a value is not finite.

        Args:
            metrics: results of `update` and of `metrics`.
            episodes: episodes that ended in the iteration; their mean return and length are added.
            updates: number of gradient steps before the iteration, for the error message; None: not stated.

        Returns:
            Name of the metric -> mean.
        """
        since = self.learner.updates if updates is None else updates
        return {name: sum(values) / len(values) for name, values in self.read_metrics(metrics, since, episodes).items()}

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self, folder: Path | None = None) -> State:
        """Return the state that the next iteration depends on, of all ranks. All ranks must call this method together.

        If `folder` is not None, each rank writes the rows of its replay buffer to this folder of checkpoints, so that
        they are not sent to rank 0.
        """
        if self._waiting:
            raise RunError("call update() before saving: the last rollout has not been used")
        self.collector.arrival = self.envs.boundary()
        learner = self.learner.state_dict()
        own = self._own_state() | {"learner": parts_of_this_rank(learner, self.ranks)}
        if folder is not None:
            retry(lambda: checkpoint.write_chunks(folder, own))
        for chunk in checkpoint.chunks_of(own):
            chunk.light = folder is not None
        return {
            "learner": learner,
            "ranks": {str(rank): state for rank, state in enumerate(self.ranks.gather(own))},
            "iterations": self.iterations,
        }

    def _own_state(self) -> State:
        return {
            "buffer": self.buffer.state_dict(),
            "collector": self.collector.state_dict(),
            "rng": streams.generator_state(self.rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; raise ValueError if shapes or the number of ranks differ."""
        for name, theirs, ours in differing_shapes(state["learner"]["agent"], self.learner.state_dict()["agent"]):
            raise ValueError(f"the agent's {name} is {theirs} in the state, but {ours} in this training")
        if len(state["ranks"]) != self.ranks.size:
            raise ValueError(f"the state has {len(state['ranks'])} ranks, but this training has {self.ranks.size}")
        own = state["ranks"][str(self.ranks.rank)]
        self.learner.load_state_dict(with_parts(state["learner"], own["learner"]))
        self.learner.sync_weights(self.behavior_policy)
        self.buffer.load_state_dict(own["buffer"])
        self.collector.load_state_dict(own["collector"])
        streams.load_generator_state(self.rng, own["rng"])
        self.iterations, self._waiting = state["iterations"], False

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
