"""Learner, collector and buffer assembled as in a run, for tests that train."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from lightning_fabric import Fabric

from rlcore.algorithms import ALGORITHMS
from rlcore.compiler import Compiler
from rlcore.config.build import build
from rlcore.config.groups import BufferConfig, DistributionConfig, EnvConfig, FabricConfig
from rlcore.config.run import RunConfig
from rlcore.envs.make import make
from rlcore.envs.spaces import spec_of
from rlcore.spec import EnvSpec
from rlcore.train import trainer
from rlcore.train.fabric import FabricRanks, make_fabric
from rlcore.types import Context, Episode, Metrics
from tests.runs import CARD


@functools.cache
def fabric(precision: str = "32-true") -> Fabric:
    return make_fabric(FabricConfig(precision=precision))


def compiler_of(config: Any, spec: EnvSpec, num_envs: int) -> Compiler:
    return Compiler(config, spec, (num_envs, 1))


def context(
    algo: dict[str, Any],
    spec: EnvSpec,
    num_envs: int = 4,
    *,
    distribution: str = "auto",
    precision: str = "32-true",
    seed: int = 0,
    compiled: bool = False,
    ranks: Any = None,
) -> Context:
    """Return the context of an algorithm, with `algo` as plain values."""
    config = RunConfig(
        algo=build(ALGORITHMS[algo["name"]].Config, algo, "algo."),
        env=EnvConfig(id=spec.id, num_envs=num_envs),
        distribution=DistributionConfig(type=distribution),
        seed=seed,
    )
    own_fabric = fabric(precision)
    ranks = ranks or FabricRanks(own_fabric)
    return Context(config, spec, own_fabric, ranks, num_envs, compiler_of(config, spec, num_envs) if compiled else None)


class Trainer(trainer.Trainer):
    """Trainer that records the metrics and the episodes of every iteration."""

    def __init__(self, config: RunConfig, card: dict[str, Any]) -> None:
        super().__init__(config, card)
        self.metrics: list[Metrics] = []
        self.episodes: list[Episode] = []

    def run(self, until: int, stop: Callable[[Trainer], bool] = lambda trainer: False) -> Trainer:
        """Train until `until` policy steps, or until `stop` returns True after an iteration."""

        def on_iteration(metrics: list[Metrics]) -> bool:
            self.metrics += [{name: float(value) for name, value in update.items()} for update in metrics]
            self.episodes += self.envs.pop_episodes()
            return stop(self)

        self.advance(until, on_iteration)
        return self

    def weights(self) -> dict[str, np.ndarray]:
        """Return parameters as float32 arrays."""
        return {n: p.detach().float().numpy().copy() for n, p in self.learner.agent.named_parameters()}


def assemble(
    env_id: str,
    algo: dict[str, Any],
    *,
    seed: int = 0,
    num_envs: int = 4,
    distribution: str = "auto",
    precision: str = "32-true",
    accelerator: str = "cpu",
    buffer: BufferConfig | None = None,
    **env: Any,
) -> Trainer:
    """Return a trainer of algorithm `algo["name"]` on an environment; keys in `env` go to its config."""
    config = RunConfig(
        algo=build(ALGORITHMS[algo["name"]].Config, algo, "algo."),
        env=EnvConfig(id=env_id, num_envs=num_envs, **env),
        fabric=FabricConfig(precision=precision, accelerator=accelerator),
        buffer=buffer or BufferConfig(),
        distribution=DistributionConfig(type=distribution),
        seed=seed,
    )
    one = make(config.env)
    card = CARD | {"spec": spec_of(one).to_json()}
    one.close()
    return Trainer(config, card)
