"""Player: environments and a behavior policy that collect trajectories, in the process of a learner or in another one.

The learner sends the weights of its behavior policy as one vector of bytes, with a version number:

    player.load_weights(learner.updates, flat_weights(learner.behavior_policy))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import AlgorithmConfig
from rlcore.errors import RunError
from rlcore.evaluation.policy import describe_mismatch
from rlcore.functional.tree import map_leaves
from rlcore.protocols import VectorEnv
from rlcore.store.checkpoint import nested_state
from rlcore.train.collect import Collector
from rlcore.types import Context, Trajectory


class Player:
    """Environments of one process and the policy that acts in them; no learner is needed.

    The policy has random weights until the first `load_weights`; until then, `version`, the version number of the
    weights, is 0. `collector` steps the environments and counts the steps of this process; its state is part of a
    checkpoint. A player never waits for other ranks.

    Args:
        context: config, specs, devices and ranks of the process. It determines all random numbers of acting.
        envs: vectorized environments; their spec and number are those of the context.
    """

    def __init__(self, context: Context[AlgorithmConfig], envs: VectorEnv) -> None:
        self.policy = make_behavior_policy(context)
        self.version = 0
        self.collector = Collector.from_context(context, envs, self.policy)

    def collect(self, length: int, random: bool = False) -> tuple[Trajectory, Trajectory]:
        """Take `length` steps in all environments; return the trajectory and the time step after it.

        Both are copies that the caller owns. `collector.collect` returns them without a copy: their memory belongs to
        the collector, which overwrites it in the next call.
        """
        return map_leaves(torch.clone, self.collector.collect(length, random))

    def load_weights(self, version: int, weights: Tensor) -> None:
        """Replace the state of the policy by that of a learner's policy, in place.

        Args:
            version: number of gradient steps after which the learner had these weights.
            weights: result of `flat_weights` for a policy of the same config, [bytes] uint8.

        Raises:
            RunError: If a name or shape differs from those of this policy.
        """
        state = nested_state.decode_message(weights, "the vector of weights")
        wrong = describe_mismatch(state, self.policy.state_dict())
        if wrong is not None:
            raise RunError(f"the weights do not fit this policy: {wrong}; use the same config in both processes")
        self.policy.load_state_dict(state)
        self.version = version


def flat_weights(policy: Any) -> Tensor:
    """Return the state of a policy, with names and shapes, as one vector of bytes on the CPU, [bytes] uint8."""
    return nested_state.encode_message(policy.state_dict())


def make_behavior_policy(context: Context[AlgorithmConfig]) -> Any:
    """Create an algorithm's behavior policy (the policy that collects data) without its learner.

    The policy is on the device of the context.

    An algorithm whose behavior policy is not its agent has a function `make_behavior_policy(agent, config)` beside
    `build`.
    """
    config = context.config
    algorithm = ALGORITHMS[config.algo.name]
    rng = torch.Generator().manual_seed(streams.integer(config.seed, "init"))
    with torch.random.fork_rng(devices=[]):  # layers without an explicit initialization use torch's global generator
        agent = algorithm.Agent(config.algo, context.spec, config.distribution.type, rng)
    make = getattr(algorithm, "make_behavior_policy", None)  # the module of a plugin may not have it
    return context.fabric.to_device(agent if make is None else make(agent, config.algo))
