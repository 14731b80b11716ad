"""The keys of Dreamer V3, under SheepRL's names; the defaults are those of its size XS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms.dreamer import DreamerConfig
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.nn.world_keys import WORLD_PARTS, LatentActorConfig, NormConfig, TwoHotConfig, WorldModelConfig
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig


@dataclass(frozen=True)
class TrainedWorldConfig(WorldModelConfig):
    """The world model and its optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=1e-4, eps=1e-8), "its own")


@dataclass(frozen=True)
class TrainedActorConfig(LatentActorConfig):
    """The actor and its optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-5, eps=1e-5), "its own")


@dataclass(frozen=True)
class CriticConfig(TwoHotConfig):
    """The critic, its slow copy and its optimizer."""

    per_rank_target_network_update_freq: int = arg(1, "gradient steps between two moves of the slow copy", low=1)
    tau: float = arg(0.02, "τ: share of the way that the slow copy moves", above=0, high=1)
    clip_gradients: float = arg(100.0, "clip the gradient's global norm here; 0 = never", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-5, eps=1e-5), "its own")

    def target_tau(self, update: int) -> float:
        """Share of the way that the slow copy moves before a gradient step."""
        return 0.0 if update % self.per_rank_target_network_update_freq else self.tau


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Keys of Dreamer V3."""

    registers: ClassVar[Mapping[str, str]] = WORLD_PARTS | {"target_critic": "target_critic", "moments": "moments"}
    side: ClassVar[int | None] = None
    continuous: ClassVar[tuple[str, ...]] = ("scaled",)

    name: str = arg("dreamer_v3", "the algorithm", choices=("dreamer_v3",))
    gamma: float = other_default(DreamerConfig, "gamma", 0.996996996996997)
    per_rank_sequence_length: int = other_default(DreamerConfig, "per_rank_sequence_length", 64)
    learning_starts: int = other_default(DreamerConfig, "learning_starts", 1024)
    dense_units: int = other_default(DreamerConfig, "dense_units", 256)
    mlp_layers: int = other_default(DreamerConfig, "mlp_layers", 1)
    dense_act: str = other_default(DreamerConfig, "dense_act", "silu")
    cnn_act: str = other_default(DreamerConfig, "cnn_act", "silu")
    mlp_layer_norm: NormConfig = arg(NormConfig(), "LayerNorm of perceptrons, likewise")
    cnn_layer_norm: NormConfig = arg(NormConfig(), "LayerNorm of convolutions, likewise")
    unimix: float = arg(0.01, "share of a uniform distribution in every categorical", low=0, high=1)
    hafner_initialization: bool = arg(
        True, "outputs begin as the authors have them, those of reward and critic at 0; false: as hidden layers do"
    )
    world_model: TrainedWorldConfig = arg(TrainedWorldConfig(), "the world model")
    actor: TrainedActorConfig = arg(TrainedActorConfig(), "the actor")
    critic: CriticConfig = arg(CriticConfig(), "the critic")

    def check(self, prefix: str) -> None:
        """Refuse what contradicts itself; `prefix` is the place of this group, for messages."""
        super().check(prefix)
        low, high = self.actor.moments.percentile.low, self.actor.moments.percentile.high
        for name, less, more in (
            ("moments.percentile.low", low, high),
            ("min_std", self.actor.min_std, self.actor.max_std),
        ):
            if less > more:
                raise UserError(f"{prefix}actor.{name}={less:g}: must not be above {more:g}")

    def check_with(self, run: RunConfig) -> None:
        """Refuse another distribution than its own."""
        super().check_with(run)
        if run.distribution.type not in ("auto", "discrete"):
            kind = run.distribution.type
            raise UserError(f"distribution.type={kind}: {self.name} has its own for each action space; set it to auto")
