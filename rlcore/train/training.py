"""Training in a process of one's own: learner, collector and buffer of one config, stepped as one likes.

    from flows.config.compose import compose
    from rlcore.train.training import Training

    training = Training(compose(["exp=ppo", "env.id=Acrobot-v1", "algo.total_steps=50000"])[0])
    for iteration in training:
        print(iteration.policy_steps, iteration.metrics.get("Rewards/rew_avg"))
    print(training.evaluate(episodes=20)["mean"])
    training.save("acrobot")      # later: Training(config).load("acrobot"), or flows.load_policy("acrobot") to act

No run directory is needed; `rlcore.train.session.Session` adds one, and everything that makes a run durable.
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
from rlcore.train.components import check_finite, convert_old_state
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
        policy_steps: taken so far, all environments and ranks together.
        env_steps: actions taken so far.
        metrics: averages over its updates and over the episodes that ended in it, as numbers.
        episodes: that ended in it.
    """

    policy_steps: int
    env_steps: int
    metrics: dict[str, float]
    episodes: list[Episode]


class Training(Loop):
    """Learner, collector and buffer of one config.

    Args:
        config: checked, as `rlcore.run_config.build_config` or `flows.config.compose.compose` gives it.
        card: of the environment (`rlcore.envs.card`); None measures it, which takes some of its episodes.
        envs: to train in instead of the config's: a vector of your own, such as one that computes in batches on a
            device. It decides the number of environments. `evaluate` plays the config's, and refuses to where the two
            specs differ.
        compiled: gradient steps are compiled ahead of time; on a GPU, recorded as a graph. None: where `algo.compile`
            is true; `auto` compiles nothing here, for what is saved depends on how long this training will go on.
        ranks: who trains beside this; None = whom its Fabric knows.
        command: whether a command started this process; the reported memory then includes the command.
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
        if config.fabric.ranks == 1:  # of several, the first looks before it starts the others
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
        """Refuse keys that the environment lacks, and what does not fit here; a card may tell nothing of its spaces."""
        told = None if envs is not None else self.card.get("spec")
        spec = envs.spec if envs is not None else told and EnvSpec.from_json(told)
        if spec is not None:
            self.config.algo.check_spec(spec)
            for notice in self.config.algo.env_notices(spec):
                log.warning("%s", notice)
            check_resources(self.config, spec, Path(self.config.run_dir), begun=True, command=command)

    @property
    def card(self) -> dict[str, Any]:
        """Card of the config's environment, measured when it is first asked for."""
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
        """Policy steps of the whole training."""
        return budget(self.config)

    def collect(self) -> None:
        """Take T steps in all environments, as `Loop` does; an EnvironmentFault if they changed torch's switches."""
        before = read_switches()
        super().collect()
        refuse_changed_switches(before)

    def update(self, on_batch: OnProgress | None = None) -> list[Metrics]:
        """Improve the agent, as `Loop` does; a RunError names the first metrics that are not finite."""
        updates, found = self.learner.updates, super().update(on_batch)
        self._read(found, updates)
        return found

    def _read(self, metrics: list[Metrics], updates: int, episodes: Sequence[Episode] = ()) -> dict[str, list[float]]:
        """Return metrics as numbers, by name; a RunError if one is not finite."""
        window = MetricsWindow(self.config.metric)
        window.start_updates = updates
        window.add(metrics, [*episodes])
        return window.check_finite(self.policy_steps, self.learner.updates)

    def advance(self, until: int, on_iteration: OnIteration, on_batch: OnProgress | None = None) -> None:
        """The one loop, for every algorithm: collect, store, update, until enough policy steps are taken.

        Args:
            until: policy steps; an iteration is never cut.
            on_iteration: called after each with the metrics of its updates; True ends the loop.
            on_batch: called within each, as `update` says.
        """
        while self.policy_steps < until:
            self.collect()
            if on_iteration(super().update(on_batch)):  # who asked checks them when they are read
                return

    def __iter__(self) -> Iterator[Iteration]:
        """Train to the end of the budget, an iteration at a time."""
        while self.policy_steps < self.budget:
            self.collect()
            before, found = self.learner.updates, super().update()
            episodes = self.envs.pop_episodes()
            told = self._read([*found, self.metrics()], before, episodes)
            means = {name: sum(values) / len(values) for name, values in told.items()}
            yield Iteration(self.policy_steps, self.env_steps, means, episodes)
            if self.config.is_tried(self.learner.updates):
                return

    def remember(self, dataset: Path | str | TensorDict) -> None:
        """Let a replay memory begin with a dataset, before the first iteration; no gradient step is owed for its rows.

        Args:
            dataset: a folder that `collect` wrote, `minari:NAME`, or rows [T, K] of `rlcore.data.dataset`, their
                actions in the environment's form.

        Raises:
            UserError: training has begun, the algorithm keeps no memory, or the dataset is of another environment.
        """
        if self.policy_steps or isinstance(self.buffer, Rollout):
            why = "training has begun" if self.policy_steps else f"{self.config.algo.name} keeps no memory"
            raise UserError(f"remember(dataset): {why}; a replay memory begins with it, before the first iteration")
        named = isinstance(dataset, (str, Path))
        rows = datasets.read_rows(str(dataset), self.envs.spec) if named else dataset
        steps, last = as_collected(rows, self.behavior_policy, self.context)
        self.buffer.extend(steps, last)
        count, size = len(steps.reward), getattr(self.buffer, "size", len(steps.reward))
        what = f"{dataset if named else 'a dataset'}: {count * self.context.num_envs:,} rows"
        kept = f", of which the newest {size * self.context.num_envs:,} fit into it" if size < count else ""
        log.info("the memory begins with %s%s", what, kept)

    # Judging and keeping ----------------------------------------------------------------------------------------------

    def evaluate(
        self, episodes: int | None = None, *, greedy: bool = True, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """Play episodes on seeds that training never sees: mean, std, ci95, returns, ...; the agent is unchanged.

        A UserError if training has a vector of environments of its own that are not the config's.
        """
        if self._foreign:
            self._refuse_other_environment()
        count = episodes or self.config.evaluation.episodes
        agent, fabric = self.learner.agent, self.fabric
        return evaluate_agent(
            agent, self.config, self.card, count, greedy=greedy, fabric=fabric, on_progress=on_progress
        )

    def _refuse_other_environment(self) -> None:
        """Refuse to evaluate in the config's environment a policy that learns in another one."""
        theirs, told = self.envs.spec, self.card.get("spec")
        ours = EnvSpec.from_json(told) if told else dataclasses.replace(theirs, id=self.config.env.id)
        if theirs == ours:
            return
        other = f"{theirs.id}" if theirs.id != ours.id else f"{theirs.id} with other spaces"
        raise UserError(
            f"evaluate() plays the config's env.id={ours.id}, but training steps {other} (envs): name the trained "
            f"environment in the config, or give the spec of envs the id and spaces of {ours.id} if it is the same one"
        )

    def state_dict(self, folder: Path | None = None) -> State:
        """All that the next iteration depends on, of every rank; all ranks call it together.

        Each writes its chunks into the folder where the state is to be saved, so that they need not travel.
        """
        if self._waiting:
            raise RunError("what was collected has not been learned from: update() before saving")
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
        """State that the learner of another rank than the first has for itself."""
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
        """Continue from a `state_dict`; a ValueError where it is of other shapes or another number of ranks."""
        for name, found, wanted in differing_shapes(state["learner"]["agent"], self.learner.state_dict()["agent"]):
            raise ValueError(f"the agent's {name} is {found} there and {wanted} here")
        if len(state["ranks"]) != self.ranks.size:
            raise ValueError(f"a state of {len(state['ranks'])} ranks where {self.ranks.size} train")
        own = state["ranks"][str(self.ranks.rank)]
        self.learner.load_state_dict(convert_old_state(with_parts(state["learner"], own["learner"])))
        self.learner.sync_weights(self.behavior_policy)
        self.buffer.load_state_dict(own["buffer"])
        self.collector.load_state_dict(own["collector"])
        streams.load_generator_state(self.rng, own["rng"])
        self.iterations, self._waiting = state["iterations"], False

    def save(self, folder: Path | str) -> Path:
        """Write a checkpoint `folder/<policy_steps>`, whole, in the place of one of that name; returns it."""
        check_finite(self.learner.state_dict(), self.policy_steps)
        folder, told = Path(folder), {"time": time.time(), "policy": describe_agent(self.config, self.envs.spec)}
        return checkpoint.save(folder, self.policy_steps, self.state_dict(folder), told, replace=True)

    def load(self, path: Path | str) -> Training:
        """Continue from a checkpoint, or from the newest one in a folder.

        A UserError where there is no good one, or it is of another config; of other weights' shapes, nothing changes.
        """
        there = (Path(path) / "manifest.json").is_file()
        source = Path(path) if there else checkpoint.newest_good(Path(path), with_chunks=True)
        if source is None:
            raise UserError(f"{path}: no good checkpoint there; give what Training.save returned, or its folder")
        learning, _ = checkpoint.load(source)
        with reading_state(source):
            self.load_state_dict(learning)
        return self

    def close(self) -> None:
        """End the environments' processes."""
        self.envs.close()
