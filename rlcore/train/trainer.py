"""Trainer of one config in the caller's process, with control over each iteration.

    from flows.config.compose import compose
    from rlcore.train.trainer import Trainer

    trainer = Trainer(compose(["exp=ppo", "env.id=Acrobot-v1", "algo.total_steps=50000"])[0])
    for iteration in trainer:
        print(iteration.policy_steps, iteration.metrics.get("Rewards/rew_avg"))
    print(trainer.evaluate(episodes=20)["mean"])
    trainer.save("acrobot")      # later: Trainer(config).load("acrobot"), or flows.load_policy("acrobot") to act

No run directory is needed. `rlcore.train.run_trainer.RunTrainer` adds one, with checkpoints, events and resuming.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from rlcore import streams
from rlcore.compiler import Compiler
from rlcore.config.algorithm import AlgorithmConfig
from rlcore.config.groups import RunConfig
from rlcore.data.dataset import as_collected, as_dataset
from rlcore.data.replay import Replay
from rlcore.data.rollout import Rollout
from rlcore.envs.card import environment_card, refuse_without_action
from rlcore.envs.vector.choose import check_batched_options, make_vector_env, refuse_foreign_vector
from rlcore.errors import RunError, UserError
from rlcore.evaluation import datasets
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import describe_agent, differing_shapes
from rlcore.protocols import VectorEnv
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.retry import retry
from rlcore.system import heap
from rlcore.system.torch_switches import keeping_switches, read_switches
from rlcore.system.training_clock import wall
from rlcore.train.boundary import budget
from rlcore.train.collect import Collector
from rlcore.train.components import build_algorithm, check_finite, parts_of_this_rank, with_parts
from rlcore.train.fabric import (
    FabricRanks,
    make_fabric,
    refuse_changed_switches,
    refuse_default_dtype,
    set_switches,
)
from rlcore.train.metrics import MetricsWindow, check_metrics
from rlcore.train.resource_check import check_resources
from rlcore.train.resume import reading_state
from rlcore.train.statistics import episode_statistics, rollout_statistics, update_statistics
from rlcore.train.stop_conditions import StopConditions
from rlcore.train.stopping import Condition
from rlcore.train.until import Iteration, Result, train_until
from rlcore.train.warmup import warm_up
from rlcore.types import Context, Episode, Metrics, Ranks, State, Trajectory

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

log = logging.getLogger(__name__)
OnIteration = Callable[[list[Metrics]], bool]
TRIMMED = 512  # number of gradient steps after which free heap memory is returned to the system


class Trainer:
    """Learner, collector and buffer of one config, trained one iteration at a time; iterable over iterations.

    An iteration collects a rollout, adds it to the buffer, and takes a gradient step on each batch that is due.

    Args:
        config: valid config, from `rlcore.run_config.build_config` or `flows.config.compose.compose`.
        card: environment card, the measured properties of the config's environment (`rlcore.envs.card`). None: the
            trainer plays some episodes to measure it.
        envs: vectorized environment for training, for example one that simulates on a GPU; replaces `env.num_envs` of
            the config. None: it is created from the config. `evaluate` always uses the config's environment, and raises
            a UserError if the spec of `envs` differs from that of the config's environment.
        compiled: True to compile gradient steps ahead of time; on a GPU, they are captured as a CUDA graph. None:
            compile if `algo.compile=true`, but not if it is `auto`, because the length of the training is unknown.
        ranks: ranks (processes) that train together; None: the ranks of Fabric.
        command: True if a Shepherd command started this process. The reported memory then includes an estimate for the
            processes of the command, Prefect and MLflow.
    """

    def __init__(
        self,
        config: RunConfig,
        card: Mapping[str, Any] | None = None,
        *,
        envs: VectorEnv | None = None,
        compiled: bool | None = None,
        ranks: Ranks | None = None,
        command: bool = False,
    ) -> None:
        self.config = config = config.with_absolute_paths()
        self._card, self._foreign = dict(card) if card is not None else None, envs is not None
        if envs is not None:
            refuse_foreign_vector(envs)
        if config.fabric.ranks == 1:  # `RunTrainer` checks several ranks before it starts the worker ranks
            self._check(envs, command)
        refuse_default_dtype()
        set_switches(config)
        fabric = make_fabric(config.fabric)
        ranks = ranks or FabricRanks(fabric)
        before = read_switches()
        envs = envs or self._own_envs(ranks, fabric.device)
        refuse_changed_switches(before)
        compiler, compiled = None, config.algo.compile is True if compiled is None else compiled
        if compiled:
            prepare = functools.cache(lambda: warm_up(self.context, self.envs, self.from_context))
            records = fabric.device.type == "cuda"
            compiler = Compiler(config, envs.spec, (envs.num_envs, ranks.size), prepare, records=records)
        self._build(Context(config, envs.spec, fabric, ranks, envs.num_envs, compiler), envs)

    @classmethod
    def from_context(cls, context: Context[AlgorithmConfig], envs: VectorEnv) -> Self:
        """Create a trainer from a context, without checking the config, the resources or torch's global switches.

        The context contains the inputs of an algorithm. The spec of `envs` must be `context.spec`.
        """
        self = cls.__new__(cls)
        self.config, self._card, self._foreign = context.config, None, True
        self._build(context, envs)
        return self

    def _build(self, context: Context[AlgorithmConfig], envs: VectorEnv) -> None:
        """Build learner, buffer and collector."""
        self.context, self.envs = context, envs
        self.fabric, self.ranks = context.fabric, context.ranks
        self.learner, self.buffer, self.plan = build_algorithm(context)
        self.behavior_policy = self.learner.behavior_policy
        self.rng = context.generator("minibatch")
        self.collector = Collector.from_context(context, envs, self.behavior_policy)
        self.iterations, self._due, self._waiting, self._untrimmed = 0, 0, False, 0

    def _check(self, envs: VectorEnv | None, command: bool) -> None:
        """Raise a UserError if the algorithm does not support the environment, or if the resources are insufficient.

        Nothing is checked if the spec is unknown: `envs` is None and the environment card (the result of make-env)
        contains no spec.
        """
        if envs is None:
            check_batched_options(self.config)
        stored = None if envs is not None else self.card.get("spec")
        spec = envs.spec if envs is not None else stored and EnvSpec.from_json(stored)
        if spec is not None:
            self.config.algo.check_spec(spec)
            if envs is None:
                refuse_without_action(self.config.algo, self.card)
            for notice in self.config.algo.env_notices(spec):
                log.warning("%s", notice)
            check_resources(self.config, spec, Path(self.config.run_dir), begun=True, command=command)

    @property
    def card(self) -> dict[str, Any]:
        """Environment card of the config's environment. If the constructor got none, it is measured at first access."""
        if self._card is None:
            with keeping_switches():
                self._card = environment_card(self.config.env)
        return self._card

    def _own_envs(self, ranks: Ranks, device: torch.device) -> VectorEnv:
        return make_vector_env(
            self.config.env,
            num_envs=self.config.env.num_envs,
            seed=self.config.seed,
            rank=ranks.rank,
            tier=self.card["tier"],
            fresh_instance=self.card["fresh_instance"],
            device=device,
            rollout_steps=self.config.algo.collect_length,
        )

    # Iterations -------------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> int:
        """Number of policy steps of the whole training."""
        return budget(self.config)

    @property
    def end(self) -> int | None:
        """Number of policy steps of the whole training; None if it ends only with a stop condition."""
        return None if self.config.algo.total_steps is None else self.budget

    @property
    def env_steps(self) -> int:
        """Number of actions taken so far by all ranks."""
        return self.collector.env_steps

    @property
    def policy_steps(self) -> int:
        """Number of rows that all ranks collected so far; the budget is in this unit."""
        return self.collector.policy_steps

    def collect(self, *, env_config: Mapping[str, Any] | None = None, greedy: bool = False) -> dict[str, float]:
        """Collect one rollout, `algo.collect_length` steps in all environments, and add it to the buffer.

        Args:
            env_config: parameters of a batched environment, as in `env.config`. All environments start new episodes
                with them. They also hold for later rollouts. The episodes that are running have not ended, so they are
                in no statistic of episodes; `Game/resets` counts the resets.
            greedy: True to return only statistics of greedy episodes, one for each environment, which are played in
                environments of their own, as by `evaluate`. Nothing is added to the buffer, and training does not
                change; `env_config` then holds only for these episodes.

        Returns:
            Statistics of the rollout, such as the mean return of the episodes that ended in it
            (`rlcore.train.statistics.rollout_statistics`). With several ranks, they are those of this rank.

        Raises:
            RunError: If `update` was not called for the previous rollout.
            UserError: If `env_config` is invalid, or no reset is due.
            EnvironmentFault: If the environments changed torch's global switches.
        """
        if greedy:
            return episode_statistics(self.evaluate(self.envs.num_envs, env_config=env_config))
        if env_config is not None:
            self._restart_envs(env_config)
        steps, last = self.collect_rollout()
        return rollout_statistics(steps, last, self.envs.pop_episodes(), self.collector.seconds)

    def _refuse_unused_rollout(self) -> None:
        """Raise a RunError if `update` was not called for the previous rollout."""
        if self._waiting:
            raise RunError("call update() before collect(): the previous rollout has not been used")

    def _restart_envs(self, env_config: Mapping[str, Any]) -> None:
        self._refuse_unused_rollout()
        self.collector.arrival = self.envs.restart(env_config, self.policy_steps)

    def collect_rollout(self) -> tuple[Trajectory, Trajectory]:
        """Collect one rollout like `collect`, without statistics, which wait for a GPU.

        Returns:
            The rollout [T, B] and the time step after it; the next call overwrites their memory.
        """
        self._refuse_unused_rollout()
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

    def update(self, on_batch: OnProgress | None = None) -> dict[str, float]:
        """Take a gradient step on each batch that is due.

        Args:
            on_batch: called before each batch with the number of finished batches and the total (`Buffer.due`).

        Returns:
            Statistics of the update (`rlcore.train.statistics.update_statistics`), such as the mean of each loss; {} if
            no batch was due.

        Raises:
            RunError: If nothing was collected since the last update, or a metric is not a single finite number.
        """
        updates, began = self.learner.updates, wall()
        metrics = self.take_gradient_steps(on_batch)
        numbers = self._read(metrics, updates)
        return update_statistics(numbers, self.learner.updates - updates, wall() - began) if metrics else {}

    def take_gradient_steps(self, on_batch: OnProgress | None = None) -> list[Metrics]:
        """Take a gradient step on each batch that is due, and return the metrics, which may still be tensors on a GPU.

        `update` calls this method and then checks that the metrics are finite, which waits for the GPU.
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
        restarts = self.envs.restarts
        failed = {"Game/env_restarts": float(restarts)} if restarts else {}
        return check_metrics({**self.buffer.metrics(), **self.plan.metrics(self._due), **failed})

    def _read(self, metrics: list[Metrics], updates: int, episodes: Sequence[Episode] = ()) -> dict[str, list[float]]:
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
        return {name: sum(values) / len(values) for name, values in self._read(metrics, since, episodes).items()}

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

    def __iter__(self) -> Iterator[Iteration]:
        """Train to the end of the budget and yield the results of each iteration."""
        while self.policy_steps < self.budget:
            self.collect_rollout()
            updates, metrics = self.learner.updates, self.take_gradient_steps()
            episodes = self.envs.pop_episodes()
            means = self.mean_metrics([*metrics, self.metrics()], episodes, updates)
            yield Iteration(self.policy_steps, self.env_steps, self.learner.updates, means, episodes)
            if self.config.is_tried(self.learner.updates):
                return

    def run(
        self,
        stop: Sequence[Condition] | None = None,
        *,
        evaluate_every: int | None = None,
        on_iteration: Callable[[Iteration], object] | None = None,
    ) -> Result:
        """Train to the end of the budget, or until a stop condition holds.

        Args:
            stop: stop conditions (`rlcore.train.stopping`); None: those of the config key `stop`.
            evaluate_every: number of iterations between evaluations of `evaluation.episodes` greedy episodes; None: no
                evaluations.
            on_iteration: called after each iteration, for example to show progress.

        Returns:
            The reason for the end, the metrics of each iteration, and the evaluations.

        Raises:
            UserError: If training would never end, or a condition reads a metric that is not reported.
        """
        conditions = StopConditions.from_config(self.config.stop) if stop is None else StopConditions(stop)
        if not conditions.conditions and self.end is None:
            raise UserError("run(): training would never end; set algo.total_steps, or pass stop=[...]")
        return train_until(self, conditions, self.evaluate, evaluate_every, on_iteration)

    def remember(self, dataset: Path | str | TensorDict) -> None:
        """Add a dataset to the replay buffer before the first iteration.

        The rows of the dataset do not count for the replay ratio, so they cause no gradient steps.

        Args:
            dataset: name of a dataset (see `rlcore.evaluation.datasets`), for example that of a checkpoint with a
                replay buffer; or a TensorDict [T, K] in the format of `rlcore.data.dataset`, for example from
                `copy_rows`.

        Raises:
            UserError: If training has already begun, if the algorithm has no replay buffer, or if the dataset does not
                fit the environment.
        """
        if self.policy_steps:
            raise UserError("remember(dataset): training has already begun; call it before the first iteration")
        if isinstance(self.buffer, Rollout):
            name = self.config.algo.name
            raise UserError(
                f"remember(dataset): {name} has no replay buffer; choose an off-policy algorithm, such as sac"
            )
        named = isinstance(dataset, (str, Path))
        rows = datasets.read_rows(str(dataset), self.envs.spec, self.config.env) if named else dataset
        steps, last = as_collected(rows, self.behavior_policy, self.context)
        self.buffer.extend(steps, last)
        count = len(steps.reward)
        size = self.buffer.size if isinstance(self.buffer, Replay) else count
        what = f"{dataset if named else 'a dataset'}: {count * self.context.num_envs:,} rows"
        kept = f", of which only the newest {size * self.context.num_envs:,} fit" if size < count else ""
        log.info("the replay buffer starts with %s%s", what, kept)

    def copy_rows(self) -> TensorDict:
        """Copy the rows of this process's replay buffer to a dataset, which `remember` of another trainer accepts.

        Returns:
            TensorDict [T, B] in the format of `rlcore.data.dataset`, in time order. It contains all rows that can be
            sampled and the current time step, whose action is a placeholder.

        Raises:
            UserError: If the algorithm has no replay buffer, or if the buffer has no rows.
        """
        if not isinstance(self.buffer, Replay):
            name = self.config.algo.name
            raise UserError(f"copy_rows(): {name} has no replay buffer; choose an off-policy algorithm, such as sac")
        return as_dataset(self.buffer.copy_rows(), self.behavior_policy, self.config.env)

    # Evaluation and saving --------------------------------------------------------------------------------------------

    def evaluate(
        self,
        episodes: int | None = None,
        *,
        greedy: bool = True,
        env_config: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """Evaluate the agent in the config's environment, on seeds that training never uses. The agent does not change.

        Args:
            episodes: number of episodes; None: `evaluation.episodes`.
            greedy: True to choose the most likely actions, False to sample.
            env_config: parameters of a batched environment, as in `evaluation.env_config`.
            on_progress: called after each step with the number of finished episodes and the total.

        Returns:
            Statistics, such as mean, std, ci95 and the returns of the episodes.

        Raises:
            UserError: If the constructor got `envs` with another spec than that of the config's environment.
        """
        if self._foreign:
            self._refuse_other_environment()
        count = episodes or self.config.evaluation.episodes
        agent, fabric, config = self.learner.agent, self.fabric, self.config
        if env_config is not None:
            values = {**config.evaluation.env_config, **env_config}
            config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, env_config=values))
            check_batched_options(config)
        return evaluate_agent(agent, config, self.card, count, greedy=greedy, fabric=fabric, on_progress=on_progress)

    def _refuse_other_environment(self) -> None:
        """Raise a UserError if the spec of the training environments differs from that of the config's environment."""
        theirs, stored = self.envs.spec, self.card.get("spec")
        ours = EnvSpec.from_json(stored) if stored else dataclasses.replace(theirs, id=self.config.env.id)
        if theirs == ours:
            return
        other = f"{theirs.id}" if theirs.id != ours.id else f"{theirs.id} with other spaces"
        raise UserError(
            f"evaluate() uses env.id={ours.id} of the config, but training uses {other} (argument envs); set env.id to "
            f"the environment of envs, or, if they are the same environment, set envs.spec to the spec of {ours.id}"
        )

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

    def save(self, folder: Path | str) -> Path:
        """Write the checkpoint `folder/<policy_steps>` atomically, replacing an existing one, and return its path."""
        check_finite(self.learner.state_dict(), self.policy_steps)
        folder, bookkeeping = Path(folder), {"time": time.time(), "policy": describe_agent(self.config, self.envs.spec)}
        return checkpoint.save(folder, self.policy_steps, self.state_dict(folder), bookkeeping, replace=True)

    def load(self, path: Path | str) -> Trainer:
        """Load a checkpoint into this trainer, and return this trainer.

        `path` is a checkpoint, or a folder of checkpoints, from which the newest valid one is loaded. Raises UserError
        if there is no valid checkpoint, or if its state does not fit this config. If the shapes of weights differ,
        this trainer does not change.
        """
        is_checkpoint = (Path(path) / "manifest.json").is_file()
        source = Path(path) if is_checkpoint else checkpoint.newest_good(Path(path), with_chunks=True)
        if source is None:
            raise UserError(
                f"{path}: this is no valid checkpoint and contains none; give the path that Trainer.save returned, or "
                "the folder that was passed to it"
            )
        learning, _ = checkpoint.load(source)
        with reading_state(source):
            self.load_state_dict(learning)
        return self

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
