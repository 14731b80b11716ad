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
from typing import TYPE_CHECKING, Any

from rlcore.compiler import Compiler
from rlcore.config.run import RunConfig
from rlcore.data.dataset import as_collected, as_dataset
from rlcore.data.replay import Replay
from rlcore.data.rollout import Rollout
from rlcore.envs.card import card_once
from rlcore.envs.vector.choose import check_batched_options, refuse_foreign_vector
from rlcore.errors import UserError
from rlcore.evaluation import datasets
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import describe_agent
from rlcore.protocols import VectorEnv
from rlcore.store import checkpoint
from rlcore.store.series import RETURN
from rlcore.system.notebook import notebook_bar
from rlcore.system.torch_switches import keeping_switches, read_switches
from rlcore.system.training_clock import wall
from rlcore.train.boundary import budget
from rlcore.train.callback_calls import Callbacks
from rlcore.train.callbacks import Callback
from rlcore.train.components import check_finite
from rlcore.train.fabric import (
    FabricRanks,
    make_fabric,
    refuse_changed_switches,
    refuse_default_dtype,
    set_switches,
)
from rlcore.train.info_check import InfoKeyCheck
from rlcore.train.loop import TrainingLoop
from rlcore.train.resume_point import reading_state
from rlcore.train.setup import (
    check_own_environment,
    check_training,
    make_envs,
    place_replay_buffer,
    refuse_other_environment,
)
from rlcore.train.statistics import episode_statistics, rollout_statistics, update_statistics
from rlcore.train.stop_conditions import StopConditions, make_condition
from rlcore.train.stopping import Condition
from rlcore.train.until import Iteration, Result, train_until
from rlcore.train.warmup import warm_up
from rlcore.types import Context, Episodes, Ranks, State

if TYPE_CHECKING:
    from tensordict import TensorDict

log = logging.getLogger(__name__)


class Trainer(TrainingLoop):
    """Training of one config, one iteration at a time; iterable over iterations.

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
            if envs is None:
                check_own_environment(config, self.card, command)
            else:
                check_training(config, envs.spec, command)
        refuse_default_dtype()
        set_switches(config)
        fabric = make_fabric(config.fabric)
        ranks = ranks or FabricRanks(fabric)
        before = read_switches()
        envs = envs or make_envs(config, self.card, ranks, fabric.device)
        refuse_changed_switches(before)
        compiler, compiled = None, config.algo.compile is True if compiled is None else compiled
        if compiled:
            prepare = functools.cache(lambda: warm_up(self.context, self.envs))
            records = fabric.device.type == "cuda"
            compiler = Compiler(config, envs.spec, (envs.num_envs, ranks.size), prepare, records=records)
        placed = place_replay_buffer(config, envs, fabric.device)
        super().__init__(Context(placed, envs.spec, fabric, ranks, envs.num_envs, compiler), envs)
        self.config, self.info_check = config, InfoKeyCheck(config.env.info_keys)
        self.callbacks = Callbacks.from_config(self)
        self._callback_states: tuple[Mapping[str, Any], Mapping[str, Any]] = {}, {}  # that were loaded

    @property
    def card(self) -> dict[str, Any]:
        """Environment card of the config's environment; measured once per process, if the constructor got none."""
        if self._card is None:
            with keeping_switches():
                self._card = card_once(self.config.env)
        return self._card

    # Iterations -------------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> int:
        """Number of policy steps of the whole training."""
        return budget(self.config)

    @property
    def end(self) -> int | None:
        """Number of policy steps of the whole training; None if it ends only with a stop condition."""
        return None if self.config.algo.total_steps is None else self.budget

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
            self.restart_envs(env_config)
        steps, last = self.collect_rollout()
        return rollout_statistics(steps, last, self.envs.pop_episodes(), self.collector.seconds)

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
        numbers = self.read_metrics(metrics, updates)
        return update_statistics(numbers, self.learner.updates - updates, wall() - began) if metrics else {}

    def __iter__(self) -> Iterator[Iteration]:
        """Train to the end of the budget and yield the results of each iteration; a notebook shows a progress bar."""
        with notebook_bar(self.end, self.policy_steps, self.ranks.rank == 0) as bar:
            while self.policy_steps < self.budget:
                self.collect_rollout()
                updates, metrics = self.learner.updates, self.take_gradient_steps()
                episodes = Episodes.of(self.envs.pop_episodes())
                self.info_check.add(episodes)
                means = self.mean_metrics([*metrics, self.metrics()], episodes, updates)
                if bar is not None:
                    bar.update(self.policy_steps, means.get(RETURN))
                yield Iteration(self.policy_steps, self.env_steps, self.learner.updates, means, episodes)
                if self.config.is_tried(self.learner.updates):
                    return

    def run(
        self,
        stop: Sequence[Condition] | None = None,
        *,
        evaluate_every: int | None = None,
        on_iteration: Callable[[Iteration], object] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> Result:
        """Train to the end of the budget, or until a stop condition holds or a callback requests it.

        Args:
            stop: stop conditions (`rlcore.train.stopping`); None: those of the config key `stop`.
            evaluate_every: number of iterations between evaluations of `evaluation.episodes` greedy episodes; None: no
                evaluations.
            on_iteration: called after each iteration, for example to show progress.
            callbacks: objects with methods of `rlcore.train.callbacks.Callback`; None: those of the config key
                `callbacks`. Their states are part of `save`; after `load`, they continue from the loaded states.

        Returns:
            The reason for the end, the metrics of each iteration, and the evaluations.

        Raises:
            UserError: If training would never end, or a condition reads a metric that is not reported.
            CallbackError: If a callback raises an exception.
        """
        if callbacks is not None:
            self.callbacks = Callbacks.of(self, callbacks)
            self.callbacks.load_learning_state(self._callback_states[0])
            self.callbacks.load_state_dict(self._callback_states[1])
            self._callback_states = {}, {}  # a later call with the same objects continues from their own state
        calls = self.callbacks
        if calls and self.ranks.size > 1:
            raise UserError("run(): callbacks on several ranks need `shepherd train`; use it, or pass callbacks=[]")
        if calls.requests is not None:
            calls.requests.reasons = {}  # of an earlier call of this method
        keys = self.config.env.info_keys
        stop = [make_condition(condition) for condition in self.config.stop] if stop is None else stop
        conditions = StopConditions(stop, info_keys=keys, callbacks=bool(calls))
        if not (conditions.conditions or calls) and self.end is None:
            raise UserError("run(): training would never end; set algo.total_steps, or pass stop=[...]")
        return train_until(self, conditions, self.evaluate, evaluate_every, on_iteration, calls)

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
        size, extras = (self.buffer.size, self.buffer.extras) if isinstance(self.buffer, Replay) else (None, None)
        steps, last = as_collected(rows, self.behavior_policy, self.context, extras)
        self.buffer.extend(steps, last)
        count = len(steps.reward)
        what = f"{dataset if named else 'a dataset'}: {count * self.context.num_envs:,} rows"
        kept = f", of which only the newest {size * self.context.num_envs:,} fit" if size and size < count else ""
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
            refuse_other_environment(self.config, self.envs.spec, self.card)
        count = episodes or self.config.evaluation.episodes
        agent, fabric, config = self.learner.agent, self.fabric, self.config
        if env_config is not None:
            values = {**config.evaluation.env_config, **env_config}
            config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, env_config=values))
            check_batched_options(config)
        return evaluate_agent(agent, config, self.card, count, greedy=greedy, fabric=fabric, on_progress=on_progress)

    def save(self, folder: Path | str) -> Path:
        """Write the checkpoint `folder/<policy_steps>` atomically, replacing an existing one, and return its path.

        Raises UserError if `folder` is a policy or a checkpoint itself: `load_policy(folder)` would then load that one.
        """
        for name in ("policy.json", "manifest.json"):
            if (Path(folder) / name).exists():
                raise UserError(
                    f"{folder}: contains {name}, so another policy would be loaded from it; use a new folder"
                )
        check_finite(self.learner.state_dict(), self.policy_steps)
        folder, bookkeeping = Path(folder), {"time": time.time(), "policy": describe_agent(self.config, self.envs.spec)}
        if self.callbacks:
            bookkeeping["callbacks"] = self.callbacks.state_dict()
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
        learning, bookkeeping = checkpoint.load(source)
        with reading_state(source):
            self.load_state_dict(learning)
            self._callback_states = self.callbacks.select(learning), bookkeeping.get("callbacks", {})
            self.callbacks.load_state_dict(self._callback_states[1])
        return self

    def state_dict(self, folder: Path | None = None) -> State:
        """Return the state of the training, as `TrainingLoop.state_dict`, with that of callbacks that may change it."""
        return super().state_dict(folder) | self.callbacks.learning_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; raise ValueError if shapes or the number of ranks differ."""
        super().load_state_dict(state)
        self.callbacks.load_learning_state(state)
