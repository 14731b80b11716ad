"""The keys of SAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlcore.config.algorithm import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, KeysConfig, MLPConfig, check_keys, kind_of
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

ROWS = 1_000_000  # of all environments together, where `buffer.size` does not say


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """A perceptron and its optimizer."""

    hidden_size: int = arg(256, "units of each hidden layer", low=1)
    mlp_layers: int = arg(2, "hidden layers; 0 = none", low=0)
    dense_act: str = arg("relu", "activation (torch.nn.ReLU and the like are accepted)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm after each hidden linear layer")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "its own")

    @property
    def layers(self) -> MLPConfig:
        """The hidden layers."""
        return MLPConfig(self.hidden_size, self.mlp_layers, self.dense_act, self.layer_norm)


@dataclass(frozen=True, kw_only=True)
class SquashedActorConfig(NetworkConfig):
    """The actor."""

    log_std_min: float = arg(-5.0, "lowest log std of the normal before the tanh", low=-20, high=2)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(NetworkConfig):
    """The critics."""

    n: int = arg(2, "N: critics, of which the lowest counts", low=1)
    target_network_frequency: int = arg(1, "gradient steps between two moves of the target critics", low=1)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig:
    """The temperature α, the weight of the entropy."""

    alpha: float = arg(1.0, "first value", above=0)
    target_entropy: float | None = arg(None, "H̄: entropy that α is tuned to, nats; null = -A, one less a dimension")
    fixed: bool = arg(False, "α stays what it is")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "of log α")


@dataclass(frozen=True)
class DecodedKeysConfig(KeysConfig):
    """Keys, with those of a decoder that SheepRL's files name."""

    decoder: tuple[str, ...] = arg((), "keys that are decoded", unused="sac decodes nothing")


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Keys of SAC."""

    name: str = arg("sac", "the algorithm", choices=("sac",))
    gamma: float = arg(0.99, "discount of one step", low=0, high=1)
    tau: float = arg(0.005, "τ: share of the way that target critics move", above=0, high=1)
    hidden_size: int = arg(256, "units of hidden layers, for the parts that do not say", low=1)
    per_rank_batch_size: int = arg(256, "N: transitions of one gradient step", low=1)
    replay_ratio: float = arg(1.0, "gradient steps of each rank for every policy step of its own", above=0)
    learning_starts: int = arg(100, "policy steps at random before the first gradient step", low=0)
    per_rank_pretrain_steps: int = arg(0, "gradient steps more when learning starts", low=0)
    n_step: int = arg(1, "n: rewards of a target before the critic's own estimate", low=1)
    mlp_keys: DecodedKeysConfig = arg(DecodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: DecodedKeysConfig = arg(DecodedKeysConfig(), "image observation keys")
    actor: SquashedActorConfig = arg(SquashedActorConfig(), "the policy's network")
    critic: CriticConfig = arg(CriticConfig(), "the Q networks")
    alpha: AlphaConfig = arg(AlphaConfig(), "weight of the entropy")

    def check(self, prefix: str) -> None:
        """Refuse a budget that ends before anything is learned; `prefix` is the place of this group, for messages."""
        super().check(prefix)
        if self.learning_starts >= self.total_steps:
            raise UserError(
                f"{prefix}learning_starts={self.learning_starts}: nothing would be learned; "
                f"must be below {prefix}total_steps ({self.total_steps})"
            )

    def check_with(self, run: RunConfig) -> None:
        """Refuse another distribution, and a memory that holds no batch."""
        if run.distribution.type not in ("auto", "tanh_normal"):
            raise UserError(f"distribution.type={run.distribution.type}: sac has a squashed normal; set it to auto")
        if self.rows(run.buffer.size, run.width) <= self.n_step:
            key = f"buffer.size={spell(run.buffer.size)}"
            raise UserError(f"{key}: of {run.width} environments; at least {run.width * (self.n_step + 1)} rows")
        held = self.rows(run.buffer.size, run.width) * run.env.num_envs
        if held < self.per_rank_batch_size:
            raise UserError(
                f"buffer.size={spell(run.buffer.size)}: the {held} rows of a rank are fewer than one batch; must be at "
                f"least algo.per_rank_batch_size ({self.per_rank_batch_size}) for each rank"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse actions that are not continuous and bounded, and observation keys that are not there."""
        if not spec.action.continuous:
            raise UserError(f"env.id={spec.id}: sac takes continuous actions, and this one has {spec.action.space}")
        kind_of(spec.action, "tanh_normal")
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds)

    def rows(self, size: int | None, width: int) -> int:
        """Rows of each environment that are remembered; `buffer.size` is of all together, as SheepRL counts."""
        return (size or ROWS) // width

    def random_steps(self, width: int) -> int:
        """Policy steps of the iterations whose actions are random: `learning_starts` in whole ones."""
        return self.learning_starts // width * width

    def quiet_steps(self, width: int) -> int:
        """Policy steps that no gradient step is owed for: all before the last random iteration."""
        return max(0, self.random_steps(width) - width)
