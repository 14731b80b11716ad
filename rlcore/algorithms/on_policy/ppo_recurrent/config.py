"""Config keys of recurrent PPO."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlcore.algorithms.on_policy.ppo import config as ppo
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, ActorConfig, EncoderConfig, MLPConfig
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig

LAYER = MLPConfig(mlp_layers=1, dense_act="relu", layer_norm=True)


@dataclass(frozen=True)
class LayerConfig:
    """Config keys of an optional layer before or after the recurrent cell."""

    apply: bool = arg(False, "use this layer")
    dense_units: int = arg(64, "units of the layer", low=1)
    activation: str = arg("relu", "activation (or its class, such as torch.nn.ReLU)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(True, "LayerNorm before the activation")
    bias: bool = arg(True, "bias of the linear layer", choices=(True,))

    @property
    def layers(self) -> MLPConfig:
        """Config of an MLP that consists of this one layer; an MLP without layers if `apply` is false."""
        return MLPConfig(self.dense_units, int(self.apply), self.activation, self.layer_norm)


@dataclass(frozen=True)
class LSTMConfig:
    """Config key for the size of the recurrent cell.

    The config group is named `lstm`, as in SheepRL, but its value also applies to a GRU cell.
    """

    hidden_size: int = arg(64, "units of the recurrent cell, LSTM or GRU", low=1)


@dataclass(frozen=True)
class RNNConfig:
    """Config keys of the recurrent layers, which are between the encoder and the networks of actor and critic."""

    cell: str = arg("lstm", "recurrent cell", choices=("lstm", "gru"))
    lstm: LSTMConfig = arg(LSTMConfig(), "size of the cell")
    pre_rnn_mlp: LayerConfig = arg(LayerConfig(), "layer before the cell")
    post_rnn_mlp: LayerConfig = arg(LayerConfig(), "layer after the cell")


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Config keys of recurrent PPO: those of PPO, some with other defaults, and those of the recurrent layers."""

    name: str = arg("ppo_recurrent", "name of the algorithm", choices=("ppo_recurrent",))
    per_rank_sequence_length: int | None = arg(
        16,
        "time steps in a sequence for backpropagation through time; null = the whole rollout of an environment",
        low=1,
    )
    per_rank_num_batches: int = arg(8, "minibatches in an epoch; each one consists of whole sequences", low=1)
    per_rank_batch_size: int | None = arg(
        64, "samples in a minibatch", low=1, unused="per_rank_num_batches sets the number of minibatches"
    )
    reset_recurrent_state_on_done: bool = arg(True, "reset the recurrent state at the start of an episode")
    sequences_per_state_reset: int | None = arg(
        None,
        "reset the recurrent state also after this number of sequences; null = not by a number of sequences",
        low=1,
    )
    vf_coef: float = other_default(ppo.Config, "vf_coef", 0.2)
    ent_coef: float = other_default(ppo.Config, "ent_coef", 0.001)
    max_grad_norm: float = other_default(ppo.Config, "max_grad_norm", 0.5)
    mlp_layers: int = other_default(ppo.Config, "mlp_layers", 1)
    dense_act: str = other_default(ppo.Config, "dense_act", "relu")
    layer_norm: bool = other_default(ppo.Config, "layer_norm", True)
    encoder: EncoderConfig = other_default(ppo.Config, "encoder", EncoderConfig(64, 1, "relu", True))
    rnn: RNNConfig = arg(RNNConfig(), "recurrent layers")
    actor: ActorConfig = arg(ActorConfig(64, 1, "relu", True), "actor network after the recurrent layers")
    critic: MLPConfig = arg(LAYER, "critic network after the recurrent layers")
    optimizer: OptimizerConfig = other_default(ppo.Config, "optimizer", OptimizerConfig("adamw", lr=3e-4))

    @property
    def sequence_length(self) -> int:
        """Number L of time steps in the longest sequence of a rollout.

        The rollout of each environment is cut into the smallest number of sequences of at most
        `per_rank_sequence_length` time steps. The lengths of these sequences are equal, or differ by one time step.
        """
        longest = self.per_rank_sequence_length or self.rollout_steps
        return math.ceil(self.rollout_steps / math.ceil(self.rollout_steps / longest))

    @property
    def steps_per_state_reset(self) -> int | None:
        """Number of time steps after which `sequences_per_state_reset` resets the recurrent state; None = never."""
        return self.sequences_per_state_reset and self.sequences_per_state_reset * self.sequence_length

    def check(self, prefix: str) -> None:
        """Raise UserError if sequences and rollouts do not match; also do the checks of PPO.

        `prefix` is the dotted path of this config group, such as "algo."; error messages start with it.
        """
        super().check(prefix)
        length = self.per_rank_sequence_length
        if length is not None and length > self.rollout_steps:
            raise UserError(
                f"{prefix}per_rank_sequence_length={length}: must not be above {prefix}rollout_steps "
                f"({self.rollout_steps}); null uses the whole rollout"
            )
        if self.sequences_per_state_reset and length and self.rollout_steps % length:
            raise UserError(
                f"{prefix}sequences_per_state_reset={self.sequences_per_state_reset}: needs sequences of equal length; "
                f"set {prefix}rollout_steps ({self.rollout_steps}) to a multiple of "
                f"{prefix}per_rank_sequence_length ({length})"
            )

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Yield a message if a rollout has fewer sequences than `per_rank_num_batches`, which is therefore reduced."""
        count = math.ceil(self.rollout_steps / self.sequence_length)
        sequences = count * run.env.num_envs
        if self.per_rank_num_batches > sequences:
            yield (
                f"algo.per_rank_num_batches={self.per_rank_num_batches}: reduced to {sequences}, the number of "
                f"sequences in one rollout (env.num_envs={run.env.num_envs} × {count} sequences of each environment in "
                f"algo.rollout_steps={self.rollout_steps})"
            )

    def merge_minibatches(self) -> Config:
        """Return a copy of the config with one minibatch per epoch, which contains the complete rollout."""
        return replace(self, per_rank_num_batches=1)
