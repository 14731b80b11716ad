"""The keys of Dreamer V3, under SheepRL's names; the defaults are those of its size XS."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.config.algorithm import VECTORS
from rlcore.config.schema import arg, other_default
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, DecodedKeysConfig, check_keys
from rlcore.nn.world_keys import LatentActorConfig, NormConfig, TwoHotConfig, WorldModelConfig
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

SMALLEST = 8  # pixels a side, of which one stage of convolutions leaves four


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


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Keys of Dreamer V3."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}

    name: str = arg("dreamer_v3", "the algorithm", choices=("dreamer_v3",))
    gamma: float = other_default(ReplayConfig, "gamma", 0.996996996996997)
    lmbda: float = arg(0.95, "λ of the λ-return", low=0, high=1)
    horizon: int = arg(15, "H: imagined steps", low=1)
    normalize_actions: bool = arg(True, "actions of -1 to 1 are stretched onto the bounds of a Box; false: clipped")
    per_rank_batch_size: int = arg(16, "N: sequences of one gradient step", low=1)
    per_rank_sequence_length: int = arg(64, "L: rows of a sequence", low=2)
    learning_starts: int = other_default(ReplayConfig, "learning_starts", 1024)
    mlp_keys: DecodedKeysConfig = arg(DecodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: DecodedKeysConfig = arg(DecodedKeysConfig(), "image observation keys")
    dense_units: int = arg(256, "units of hidden layers, for the parts that do not say", low=1)
    mlp_layers: int = arg(1, "hidden layers, likewise", low=0)
    dense_act: str = arg("silu", "activation, likewise", choices=tuple(ACTIVATIONS))
    cnn_act: str = arg("silu", "activation of convolutions, likewise", choices=tuple(ACTIVATIONS))
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
        seen = self.mlp_keys.encoder + self.cnn_keys.encoder
        if seen and not self.mlp_keys.decoded + self.cnn_keys.decoded:
            raise UserError(
                f"{prefix}mlp_keys.decoder=[]: the model learns from what it reconstructs; "
                f"name at least one of {', '.join(seen)}"
            )
        low, high = self.actor.moments.percentile.low, self.actor.moments.percentile.high
        for name, less, more in (
            ("moments.percentile.low", low, high),
            ("min_std", self.actor.min_std, self.actor.max_std),
        ):
            if less > more:
                raise UserError(f"{prefix}actor.{name}={less:g}: must not be above {more:g}")

    def check_with(self, run: RunConfig) -> None:
        """Refuse another distribution, and a memory that holds no sequence of each environment."""
        if run.distribution.type not in ("auto", "discrete"):
            kind = run.distribution.type
            raise UserError(f"distribution.type={kind}: {self.name} has its own for each action space; set it to auto")
        rows, length = self.rows(run.buffer.size, run.width), self.per_rank_sequence_length
        if rows <= length:
            raise UserError(
                f"algo.per_rank_sequence_length={length}: longer than the {rows} rows that buffer.size="
                f"{spell(run.buffer.size)} leaves each of {run.width} environments; must be below {rows}, or "
                f"buffer.size at least {run.width * (length + 1)}"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse observation keys that the environment does not have, and images that stages cannot halve."""
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, SMALLEST)
        for key in self.cnn_keys.encoder:
            height, width = spec.obs[key].pixels
            if height != width or not math.log2(height).is_integer():
                raise UserError(
                    f"algo.cnn_keys.encoder: {key} has {height} × {width} pixels, and stages of convolutions halve a "
                    "square whose side is a power of two; set env.screen_size to 64"
                )

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Say what is not stacked, and when learning begins later than its key says."""
        if run.env.frame_stack > 1:
            yield f"env.frame_stack={run.env.frame_stack}: {self.name} sees the newest frame; its state remembers"
        rows, width = self.per_rank_sequence_length, run.width
        if rows * width > max(self.random_steps(width), width):
            yield (
                f"algo.learning_starts={self.learning_starts}: learning starts after {rows * width} policy steps, when "
                f"each of {width} environments has a sequence (algo.per_rank_sequence_length={rows})"
            )
