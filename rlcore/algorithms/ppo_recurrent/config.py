"""The keys of recurrent PPO."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlcore.algorithms.ppo import config as ppo
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, ActorConfig, EncoderConfig, MLPConfig
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig

LAYER = MLPConfig(mlp_layers=1, dense_act="relu", layer_norm=True)


@dataclass(frozen=True)
class LayerConfig:
    """One layer before or after the recurrent cell."""

    apply: bool = arg(False, "whether it is there")
    dense_units: int = arg(64, "units", low=1)
    activation: str = arg("relu", "activation (torch.nn.ReLU and the like are accepted)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(True, "LayerNorm before the activation")
    bias: bool = arg(True, "its linear layer has a bias", choices=(True,))

    @property
    def layers(self) -> MLPConfig:
        """The layer as a perceptron, which has none where it is not there."""
        return MLPConfig(self.dense_units, int(self.apply), self.activation, self.layer_norm)


@dataclass(frozen=True)
class LSTMConfig:
    """The cell's size, under SheepRL's name."""

    hidden_size: int = arg(64, "H: units of the cell, whichever it is", low=1)


@dataclass(frozen=True)
class RNNConfig:
    """The recurrent core between encoder and heads."""

    cell: str = arg("lstm", "recurrent cell", choices=("lstm", "gru"))
    lstm: LSTMConfig = arg(LSTMConfig(), "size")
    pre_rnn_mlp: LayerConfig = arg(LayerConfig(), "a layer before the cell")
    post_rnn_mlp: LayerConfig = arg(LayerConfig(), "a layer after the cell")


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Keys that a recurrent agent adds to PPO's, and the values of PPO's that are others here."""

    name: str = arg("ppo_recurrent", "the algorithm", choices=("ppo_recurrent",))
    per_rank_sequence_length: int | None = arg(
        16, "L: rows of one sequence, along which gradients flow; null = the whole rollout of an environment", low=1
    )
    per_rank_num_batches: int = arg(8, "minibatches of an epoch, of whole sequences", low=1)
    per_rank_batch_size: int = arg(
        64, "samples in one minibatch", low=1, unused="per_rank_num_batches says how many minibatches there are"
    )
    reset_recurrent_state_on_done: bool = arg(True, "an episode begins without what the one before it left")
    vf_coef: float = other_default(ppo.Config, "vf_coef", 0.2)
    ent_coef: float = other_default(ppo.Config, "ent_coef", 0.001)
    max_grad_norm: float = other_default(ppo.Config, "max_grad_norm", 0.5)
    mlp_layers: int = other_default(ppo.Config, "mlp_layers", 1)
    dense_act: str = other_default(ppo.Config, "dense_act", "relu")
    layer_norm: bool = other_default(ppo.Config, "layer_norm", True)
    encoder: EncoderConfig = other_default(ppo.Config, "encoder", EncoderConfig(64, 1, "relu", True))
    rnn: RNNConfig = arg(RNNConfig(), "the recurrent core")
    actor: ActorConfig = arg(ActorConfig(64, 1, "relu", True), "after the core")
    critic: MLPConfig = arg(LAYER, "after the core")
    optimizer: OptimizerConfig = other_default(ppo.Config, "optimizer", OptimizerConfig("adamw", lr=3e-4))

    @property
    def sequence_length(self) -> int:
        """L: rows of a sequence, a rollout in equal parts as far as its length allows."""
        longest = self.per_rank_sequence_length or self.rollout_steps
        return math.ceil(self.rollout_steps / math.ceil(self.rollout_steps / longest))

    def check(self, prefix: str) -> None:
        """Refuse sequences that are longer than a rollout; `prefix` is the place of this group, for messages."""
        super().check(prefix)
        length = self.per_rank_sequence_length
        if length is not None and length > self.rollout_steps:
            raise UserError(
                f"{prefix}per_rank_sequence_length={length}: must not be above {prefix}rollout_steps "
                f"({self.rollout_steps}); null takes the whole rollout"
            )

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Say it where there are fewer sequences than minibatches."""
        count = math.ceil(self.rollout_steps / self.sequence_length)
        sequences = count * run.env.num_envs
        if self.per_rank_num_batches > sequences:
            yield (
                f"algo.per_rank_num_batches={self.per_rank_num_batches}: cut to {sequences}, the sequences of one "
                f"rollout (env.num_envs={run.env.num_envs} × {count} of algo.rollout_steps={self.rollout_steps})"
            )

    def merge_minibatches(self) -> Config:
        """One minibatch holds all sequences."""
        return replace(self, per_rank_num_batches=1)
