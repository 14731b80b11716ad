"""Dreamer V3 with three changes of the authors' code of 2024, as the author of a plugin would write it.

Model states are stored with the rows of the replay buffer: sequences start from them, and the learner writes back the
new ones. The weights of the recurrent cell are block-diagonal. Gradients are clipped by adaptive gradient clipping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dense import glorot_linear
from rlcore.algorithms.dreamer.dreamer_v3 import config
from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from rlcore.algorithms.dreamer.networks import Networks
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import memory_and_plan
from rlcore.config.schema import arg, other_default
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.spec import ArraySpec
from rlcore.types import Batch, Context

BLOCKS = 4
CLIP = 0.3  # largest norm of a gradient divided by the norm of its parameters
BEHAVIOR = OptimizerConfig(lr=3e-5, eps=1e-5, clip_norm="adaptive")


class BlockGRU(nn.Module):
    """Gated recurrent unit; each of 4 blocks of the state depends on the input and on the same block of the last state.

    (r, c, u) = W x + U h        h' = σ(u - 1) tanh(σ(r) c) + (1 - σ(u - 1)) h        U is block-diagonal
    """

    def __init__(self, inputs: int, size: int, form: Any, rng: torch.Generator) -> None:
        super().__init__()
        self.of_input = glorot_linear(inputs, 3 * size, rng)
        width = size // BLOCKS
        self.of_state = nn.Parameter(torch.randn(BLOCKS, width, 3 * width, generator=rng) / width**0.5)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the next state [..., H] from input x [..., F] and state h [..., H]."""
        blocks = h.unflatten(-1, (BLOCKS, -1))
        gates = self.of_input(x).unflatten(-1, (BLOCKS, -1)) + torch.einsum("...bi,bio->...bo", blocks, self.of_state)
        reset, candidate, update = gates.chunk(3, -1)
        return torch.lerp(blocks, torch.tanh(reset.sigmoid() * candidate), (update - 1).sigmoid()).flatten(-2)


class Agent(dreamer_v3.Agent):
    """Dreamer V3 agent that returns its model state with every action."""

    networks = Networks(cell=BlockGRU)

    def act(self, *inputs: Any, **how: Any) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Select actions, and return the model state as extras."""
        carry, action, _ = super().act(*inputs, **how)
        return carry, action, {name: carry[name] for name in ModelState._fields}


class Learner(dreamer_v3.Learner):
    """Dreamer V3 learner that starts sequences from stored model states and writes back the new ones."""

    agent_class = Agent

    def initial_state(self, batch: Batch) -> ModelState:
        """Return the stored model state in the first row of the sequences."""
        return ModelState(*(batch.steps.extras[name][0] for name in ModelState._fields))

    def updated_extras(self, states: ModelState) -> dict[str, Tensor]:
        """Return the new model states, to be written back."""
        return states._asdict()


def build(context: Context) -> Any:
    learner = Learner(context)
    sizes = zip(ModelState._fields, learner.agent.world.rssm.sizes, strict=True)
    extras = {name: ArraySpec((size,), "float32") for name, size in sizes}
    return learner, *memory_and_plan(context, extras, lead=1)


@dataclass(frozen=True)
class WorldModelConfig(config.WorldModelConfig):
    clip_gradients: float = other_default(config.WorldModelConfig, "clip_gradients", CLIP)
    optimizer: OptimizerConfig = other_default(
        config.WorldModelConfig, "optimizer", OptimizerConfig(lr=1e-4, eps=1e-8, clip_norm="adaptive")
    )


@dataclass(frozen=True)
class ActorConfig(config.ActorConfig):
    clip_gradients: float = other_default(config.ActorConfig, "clip_gradients", CLIP)
    optimizer: OptimizerConfig = other_default(config.ActorConfig, "optimizer", BEHAVIOR)


@dataclass(frozen=True)
class CriticConfig(config.CriticConfig):
    clip_gradients: float = other_default(config.CriticConfig, "clip_gradients", CLIP)
    optimizer: OptimizerConfig = other_default(config.CriticConfig, "optimizer", BEHAVIOR)


@dataclass(frozen=True, kw_only=True)
class Config(config.Config):
    name: str = arg("dreamer_v3_latents", "name of the algorithm", choices=("dreamer_v3_latents",))
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    actor: ActorConfig = arg(ActorConfig(), "actor")
    critic: CriticConfig = arg(CriticConfig(), "critic")
