"""Training with the environments in another process, as the author of a decoupled topology would write it.

The player process collects with the weights that it was sent; the learner process has no environments. Both take turns,
so the result must be bit-identical to training in one process.
"""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.connection import Connection
from typing import Any

import torch

from rlcore.config.run import RunConfig
from rlcore.envs.vector.choose import make_vector_env
from rlcore.spec import EnvSpec
from rlcore.train.components import build_algorithm
from rlcore.train.fabric import FabricRanks, make_fabric, set_switches
from rlcore.train.player import Player, flat_weights
from rlcore.types import Context


def make_context(config: RunConfig, spec: EnvSpec) -> Context:
    fabric = make_fabric(config.fabric)
    return Context(config, spec, fabric, FabricRanks(fabric), config.env.num_envs)


def play(connection: Connection, config: RunConfig, card: dict[str, Any]) -> None:
    """Collect a rollout for every message (version, weights, length, random) until the message is None."""
    set_switches(config)
    how = {"tier": card["tier"], "fresh_instance": card["fresh_instance"]}
    envs = make_vector_env(config.env, num_envs=config.env.num_envs, seed=config.seed, rank=0, **how)
    player = Player(make_context(config, envs.spec), envs)
    while (message := pickle.loads(connection.recv_bytes())) is not None:
        version, weights, length, random = message
        player.load_weights(version, torch.frombuffer(bytearray(weights), dtype=torch.uint8))
        steps, last = player.collect(length, random)
        connection.send_bytes(pickle.dumps((player.version, player.collector.policy_steps, steps, last)))
    envs.close()


class DecoupledTrainer:
    """Learner and buffer of a config, without environments; a child process collects."""

    def __init__(self, config: RunConfig, card: dict[str, Any]) -> None:
        set_switches(config)
        context = make_context(config, EnvSpec.from_json(card["spec"]))
        self.learner, self.buffer, self.plan = build_algorithm(context)
        self.rng, self.policy_steps, self.versions = context.generator("minibatch"), 0, list[int]()
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=play, args=(theirs, config, card), daemon=True)
        self.process.start()

    def iterate(self) -> None:
        """Publish the weights, receive a rollout, and take the gradient steps that are due."""
        before = self.policy_steps
        weights = flat_weights(self.learner.behavior_policy).numpy().tobytes()
        random = before < self.plan.random_steps
        self.connection.send_bytes(pickle.dumps((self.learner.updates, weights, self.plan.collect_length, random)))
        version, self.policy_steps, steps, last = pickle.loads(self.connection.recv_bytes())
        self.versions.append(version)
        self.buffer.extend(steps, last)
        for batch in self.buffer.batches(before):
            self.learner.update(batch, self.rng)

    def close(self) -> None:
        self.connection.send_bytes(pickle.dumps(None))
        self.process.join()
