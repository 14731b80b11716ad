"""Learner, collector and buffer put together as a run does it, for tests that train."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import DistributionConfig, EnvConfig, FabricConfig, RunConfig
from rlcore.config.schema import build
from rlcore.envs.vector.make import make_vector_env
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.train.collect import Collector
from rlcore.train.fabric import FabricRanks, make_fabric
from rlcore.train.loop import train
from rlcore.types import Context, Episode, Metrics, Plan


@functools.cache
def fabric(precision: str = "32-true") -> Fabric:
    return make_fabric(FabricConfig(precision=precision))


def context(
    algo: dict[str, Any],
    spec: EnvSpec,
    num_envs: int = 4,
    *,
    distribution: str = "auto",
    precision: str = "32-true",
    seed: int = 0,
    compiled: bool = False,
) -> Context:
    """What an algorithm is built from, with `algo` as plain values."""
    config = RunConfig(
        algo=build(ALGORITHMS[algo["name"]].Config, algo, "algo."),
        env=EnvConfig(id=spec.id, num_envs=num_envs),
        distribution=DistributionConfig(type=distribution),
        seed=seed,
    )
    made = fabric(precision)
    return Context(config, spec, made, FabricRanks(made), num_envs, compiled)


@dataclass
class Training:
    """Everything the loop needs, and what it said."""

    learner: Any
    collector: Collector
    buffer: Any
    plan: Plan
    rng: np.random.Generator
    metrics: list[Metrics] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)

    def run(self, until: int, stop: Callable[[Training], bool] = lambda training: False) -> Training:
        """Train until `until` policy steps, or until `stop` says so after an iteration."""

        def on_iteration(metrics: list[Metrics]) -> bool:
            self.metrics += [{name: float(value) for name, value in update.items()} for update in metrics]
            self.episodes += self.collector.envs.pop_episodes()
            return stop(self)

        train(self.learner, self.collector, self.buffer, self.plan, self.rng, until, on_iteration)
        return self

    def state(self) -> dict[str, Any]:
        """All that the next step depends on."""
        parts = {"learner": self.learner, "buffer": self.buffer, "collector": self.collector}
        states = {name: part.state_dict() for name, part in parts.items()}
        return states | {"rng": streams.generator_state(self.rng)}

    def save(self, folder: Path) -> Path:
        """Write a checkpoint as a run does."""
        return checkpoint.save(folder, self.collector.env_steps, self.state(), {})

    def load(self, path: Path) -> Training:
        """Continue from a checkpoint's files."""
        state, _ = checkpoint.load(path)
        for name in ("learner", "buffer", "collector"):
            getattr(self, name).load_state_dict(state[name])
        streams.load_generator_state(self.rng, state["rng"])
        return self

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters as float32 arrays."""
        return {n: p.detach().float().numpy().copy() for n, p in self.learner.agent.named_parameters()}


def assemble(
    env_id: str,
    algo: dict[str, Any],
    *,
    seed: int = 0,
    num_envs: int = 4,
    distribution: str = "auto",
    precision: str = "32-true",
    **env: Any,
) -> Training:
    """A training of algorithm `algo["name"]` on an environment; keys in `env` go to its config."""
    envs = make_vector_env(EnvConfig(id=env_id, num_envs=num_envs, **env), num_envs=num_envs, seed=seed)
    learner, buffer, plan = ALGORITHMS[algo["name"]].build(
        context(algo, envs.spec, num_envs, distribution=distribution, precision=precision, seed=seed)
    )
    collector = Collector(
        envs,
        learner.agent,
        streams.generator(seed, "policy", 0),
        fabric(precision).device,
        fabric(precision).autocast,
    )
    return Training(learner, collector, buffer, plan, streams.generator(seed, "minibatch", 0))
