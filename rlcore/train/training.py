"""Training in the caller's process: learner, collector and buffer of one config, with control over each step.

    from flows.config.compose import compose
    from rlcore.train.training import Training

    training = Training(compose(["exp=ppo", "env.id=Acrobot-v1", "algo.total_steps=50000"])[0])
    for iteration in training:
        print(iteration.policy_steps, iteration.metrics.get("Rewards/rew_avg"))
    print(training.evaluate(episodes=20)["mean"])
    training.save("acrobot")      # later: Training(config).load("acrobot"), or flows.load_policy("acrobot") to act

No run directory is needed. `rlcore.train.session.Session` adds one, with checkpoints, events and resuming.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore import streams
from rlcore.compiler import Compiler
from rlcore.config.groups import RunConfig
from rlcore.data.dataset import as_collected
from rlcore.data.rollout import Rollout
from rlcore.envs.card import environment_card
from rlcore.envs.vector.choose import make_vector_env, refuse_foreign_vector
from rlcore.errors import RunError, UserError
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import describe_agent, differing_shapes
from rlcore.protocols import VectorEnv
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint, datasets
from rlcore.store.retry import retry
from rlcore.system.torch_switches import keeping_switches, read_switches
from rlcore.train.boundary import budget
from rlcore.train.components import check_finite
from rlcore.train.fabric import (
    FabricRanks,
    make_fabric,
    refuse_changed_switches,
    refuse_default_dtype,
    set_switches,
)
from rlcore.train.loop import Loop
from rlcore.train.metrics import MetricsWindow
from rlcore.train.rank_state import Part, digests, parts_that_differ, with_parts
from rlcore.train.resource_check import check_resources
from rlcore.train.resume import reading_state
from rlcore.train.warmup import warm_up
from rlcore.types import Context, Episode, Metrics, Ranks, State

if TYPE_CHECKING:
    from tensordict import TensorDict

log = logging.getLogger(__name__)
OnIteration = Callable[[list[Metrics]], bool]


@dataclass(frozen=True)
class Iteration:
    """Results of one iteration.

    Attributes:
        policy_steps: number of policy steps so far, of all environments and ranks.
        env_steps: number of actions so far.
        metrics: means over the updates of the iteration and over the episodes that ended in it, as numbers.
        episodes: episodes that ended in the iteration.
    """

    policy_steps: int
    env_steps: int
    metrics: dict[str, float]
    episodes: list[Episode]


class Training(Loop):
    """Learner, collector and buffer of one config, as an iterable over iterations.

    Args:
        config: valid config, from `rlcore.run_config.build_config` or `flows.config.compose.compose`.
        card: card of the environment (`rlcore.envs.card`); None: measured in some episodes.
        envs: training environments instead of those of the config, for example a vector that runs in batches on a
            device. It determines the number of environments. `evaluate` uses the config's environment, and raises a
            UserError if the two specs differ.
        compiled: True to compile gradient steps ahead of time; on a GPU, they are captured as a CUDA graph. None: True
            if `algo.compile` is true. `auto` does not compile here, because the length of this training is unknown.
        ranks: processes that train together; None: the ranks of Fabric.
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
        self._card = dict(card) if card is not None else None
        if envs is not None:
            refuse_foreign_vector(envs)
        if config.fabric.ranks == 1:  # `Session` checks several ranks before it starts the worker ranks
            self._check(envs, command)
        refuse_default_dtype()
        set_switches(config)
        self.fabric = make_fabric(config.fabric)
        self.ranks = ranks or FabricRanks(self.fabric)
        self._foreign = envs is not None
        before = read_switches()
        self.envs = envs or self._own_envs()
        refuse_changed_switches(before)
        spec, width = self.envs.spec, (self.envs.num_envs, self.ranks.size)
        prepare = functools.cache(lambda: warm_up(context, self.envs))
        records = self.fabric.device.type == "cuda"
        compiled = config.algo.compile is True if compiled is None else compiled
        compiler = Compiler(config, spec, width, prepare, records=records) if compiled else None
        context = Context(config, spec, self.fabric, self.ranks, self.envs.num_envs, compiler)
        super().__init__(context, self.envs)

    def _check(self, envs: VectorEnv | None, command: bool) -> None:
        """Check algorithm and resources against the spec of the environment, unless the card has no spec."""
        stored = None if envs is not None else self.card.get("spec")
        spec = envs.spec if envs is not None else stored and EnvSpec.from_json(stored)
        if spec is not None:
            self.config.algo.check_spec(spec)
            for notice in self.config.algo.env_notices(spec):
                log.warning("%s", notice)
            check_resources(self.config, spec, Path(self.config.run_dir), begun=True, command=command)

    @property
    def card(self) -> dict[str, Any]:
        """Card of the config's environment, measured at first access."""
        if self._card is None:
            with keeping_switches():
                self._card = environment_card(self.config.env)
        return self._card

    def _own_envs(self) -> VectorEnv:
        return make_vector_env(
            self.config.env,
            num_envs=self.config.env.num_envs,
            seed=self.config.seed,
            rank=self.ranks.rank,
            tier=self.card["tier"],
            fresh_instance=self.card["fresh_instance"],
        )

    # Stepwise ---------------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> int:
        """Number of policy steps of the whole training."""
        return budget(self.config)

    def collect(self) -> None:
        """Take T steps in all environments (see `Loop`); raise EnvironmentFault if they changed torch's switches."""
        before = read_switches()
        super().collect()
        refuse_changed_switches(before)

    def update(self, on_batch: OnProgress | None = None) -> list[Metrics]:
        """Take the gradient steps that are due (see `Loop`); raise a RunError if a metric is not finite."""
        updates, metrics = self.learner.updates, super().update(on_batch)
        self._read(metrics, updates)
        return metrics

    def _read(self, metrics: list[Metrics], updates: int, episodes: Sequence[Episode] = ()) -> dict[str, list[float]]:
        """Return name -> metrics as numbers; raise a RunError if one is not finite."""
        window = MetricsWindow(self.config.metric)
        window.start_updates = updates
        window.add(metrics, [*episodes])
        return window.check_finite(self.policy_steps, self.learner.updates)

    def advance(self, until: int, on_iteration: OnIteration, on_batch: OnProgress | None = None) -> None:
        """Run whole iterations (collect, store, update) until `until` policy steps are taken.

        Args:
            until: number of policy steps.
            on_iteration: called after each iteration with the metrics of its updates; the loop ends if it returns True.
            on_batch: progress callback within an iteration, see `update`.
        """
        while self.policy_steps < until:
            self.collect()
            if on_iteration(super().update(on_batch)):  # the callback checks the metrics when it reads them
                return

    def __iter__(self) -> Iterator[Iteration]:
        """Train to the end of the budget and yield the results of each iteration."""
        while self.policy_steps < self.budget:
            self.collect()
            before, metrics = self.learner.updates, super().update()
            episodes = self.envs.pop_episodes()
            numbers = self._read([*metrics, self.metrics()], before, episodes)
            means = {name: sum(values) / len(values) for name, values in numbers.items()}
            yield Iteration(self.policy_steps, self.env_steps, means, episodes)
            if self.config.is_tried(self.learner.updates):
                return

    def remember(self, dataset: Path | str | TensorDict) -> None:
        """Add a dataset to the replay buffer before the first iteration. Its rows do not cause gradient steps.

        Args:
            dataset: folder written by `shepherd collect`, `minari:NAME`, or rows [T, K] of `rlcore.data.dataset`
                with actions in the environment's form.

        Raises:
            UserError: If training has begun, the algorithm has no replay buffer, or the environment differs.
        """
        if self.policy_steps:
            raise UserError("remember(dataset): training has already begun; call it before the first iteration")
        if isinstance(self.buffer, Rollout):
            name = self.config.algo.name
            raise UserError(
                f"remember(dataset): {name} has no replay buffer; choose an off-policy algorithm, such as sac"
            )
        named = isinstance(dataset, (str, Path))
        rows = datasets.read_rows(str(dataset), self.envs.spec) if named else dataset
        steps, last = as_collected(rows, self.behavior_policy, self.context)
        self.buffer.extend(steps, last)
        count, size = len(steps.reward), getattr(self.buffer, "size", len(steps.reward))
        what = f"{dataset if named else 'a dataset'}: {count * self.context.num_envs:,} rows"
        kept = f", of which only the newest {size * self.context.num_envs:,} fit" if size < count else ""
        log.info("the replay buffer starts with %s%s", what, kept)

    # Evaluation and saving --------------------------------------------------------------------------------------------

    def evaluate(
        self, episodes: int | None = None, *, greedy: bool = True, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """Evaluate the agent in episodes with seeds that training never uses; return mean, std, ci95, returns, ….

        The agent does not change. Raises UserError if the argument `envs` has another spec than the config's
        environment.
        """
        if self._foreign:
            self._refuse_other_environment()
        count = episodes or self.config.evaluation.episodes
        agent, fabric = self.learner.agent, self.fabric
        return evaluate_agent(
            agent, self.config, self.card, count, greedy=greedy, fabric=fabric, on_progress=on_progress
        )

    def _refuse_other_environment(self) -> None:
        """Raise a UserError if the spec of the training environments differs from that of the config's environment."""
        theirs, stored = self.envs.spec, self.card.get("spec")
        ours = EnvSpec.from_json(stored) if stored else dataclasses.replace(theirs, id=self.config.env.id)
        if theirs == ours:
            return
        other = f"{theirs.id}" if theirs.id != ours.id else f"{theirs.id} with other spaces"
        raise UserError(
            f"evaluate() uses env.id={ours.id} of the config, but training uses {other} (argument envs); set env.id to "
            f"the trained environment, or, if it is the same one, give envs.spec the id and spaces of {ours.id}"
        )

    def state_dict(self, folder: Path | None = None) -> State:
        """Return the state of all ranks on which the next iteration depends; all ranks must call it together.

        If a folder is given, each rank writes its chunks there, so that they are not sent to rank 0.
        """
        if self._waiting:
            raise RunError("call update() before saving: the last rollout has not been used")
        self.collector.arrival = self.envs.boundary()
        learner = self.learner.state_dict()
        own = self._own_state() | {"learner": self._of_this_rank(learner)}
        if folder is not None:
            retry(lambda: checkpoint.write_chunks(folder, own))
        for chunk in checkpoint.chunks_of(own):
            chunk.light = folder is not None
        return {
            "learner": learner,
            "ranks": {str(rank): state for rank, state in enumerate(self.ranks.gather(own))},
            "iterations": self.iterations,
        }

    def _of_this_rank(self, learner: State) -> list[Part]:
        """Return the parts of the learner's state that differ from rank 0; [] on rank 0."""
        if self.ranks.size == 1:
            return []
        first = self.ranks.gather(digests(learner) if self.ranks.rank == 0 else None)[0]
        return list(parts_that_differ(learner, first))

    def _own_state(self) -> State:
        return {
            "buffer": self.buffer.state_dict(),
            "collector": self.collector.state_dict(),
            "rng": streams.generator_state(self.rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; raise ValueError if shapes or the number of ranks differ."""
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

    def load(self, path: Path | str) -> Training:
        """Load a checkpoint, or the newest one in a folder, and return this object.

        Raises UserError if there is no valid checkpoint, or if it belongs to another config. If shapes of weights
        differ, this object does not change.
        """
        there = (Path(path) / "manifest.json").is_file()
        source = Path(path) if there else checkpoint.newest_good(Path(path), with_chunks=True)
        if source is None:
            raise UserError(
                f"{path}: no valid checkpoint there; give the path that Training.save returned, or its folder"
            )
        learning, _ = checkpoint.load(source)
        with reading_state(source):
            self.load_state_dict(learning)
        return self

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
