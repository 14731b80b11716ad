"""The keys of Dreamer V3, under SheepRL's names; the defaults are those of its size XS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms.dreamer import DreamerConfig
from rlcore.algorithms.dreamer_v3.layer_keys import (
    DenseConfig,
    HiddenConfig,
    NormConfig,
    ObservationConfig,
    RecurrentConfig,
    TwoHotConfig,
)
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.nn.world_keys import ACTORS, MASKED, WORLD_PARTS, MomentsConfig, PolicyForm, WorldKeys
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig


@dataclass(frozen=True)
class DiscountConfig(DenseConfig):
    """The head that says whether the episode goes on."""

    learnable: bool = arg(True, "of SheepRL's files", unused="it is always learned")
    imagined: str = arg(
        "mode", "imagined episodes go on: mode, where that is likelier; mean, by its chance", choices=("mode", "mean")
    )


@dataclass(frozen=True)
class WorldModelConfig(WorldKeys):
    """The world model and its optimizer."""

    discrete_size: int = arg(32, "classes of a latent variable", low=2)
    kl_dynamic: float = arg(0.5, "β_dyn: weight of the KL that trains the prior", low=0)
    kl_representation: float = arg(0.1, "β_rep: weight of the KL that trains the posterior", low=0)
    continue_scale_factor: float = arg(1.0, "weight of the loss of episodes' ends", low=0)
    clip_gradients: float = other_default(WorldKeys, "clip_gradients", 1000.0)
    decoupled_rssm: bool = arg(False, "the posterior sees the observation alone, not the recurrent state")
    learnable_initial_recurrent_state: bool = arg(True, "the state at an episode's start is learned; false: zeros")
    encoder: ObservationConfig = arg(ObservationConfig(), "encoder of observations")
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    transition_model: HiddenConfig = arg(HiddenConfig(), "prior")
    representation_model: HiddenConfig = arg(HiddenConfig(), "posterior")
    observation_model: ObservationConfig = arg(ObservationConfig(), "decoder of observations")
    reward_model: TwoHotConfig = arg(TwoHotConfig(), "head of the reward")
    discount_model: DiscountConfig = arg(DiscountConfig(), "head of the episodes' ends")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=1e-4, eps=1e-8), "its own")

    @property
    def decoupled(self) -> bool:
        """The posterior sees the observation alone, not the recurrent state."""
        return self.decoupled_rssm

    @property
    def begin(self) -> str:
        """State at an episode's start."""
        return "learned" if self.learnable_initial_recurrent_state else "prior"


@dataclass(frozen=True)
class ActorConfig(DenseConfig):
    """The actor, who sees the model's states, and its optimizer."""

    cls: str = arg("actor", "which; masked_actor takes choices that the environment's masks allow", choices=ACTORS)
    ent_coef: float = arg(3e-4, "η: weight of the entropy bonus", low=0)
    objective_mix: float | None = arg(
        None,
        "share of REINFORCE in the objective, the rest through the model; null: discrete actions 1, continuous ones 0",
        low=0,
        high=1,
    )
    min_std: float = arg(0.1, "lowest std of a continuous action", above=0)
    max_std: float = arg(1.0, "highest std of a continuous action", above=0)
    init_std: float = arg(2.0, "added to what the network gives for the std, before a sigmoid")
    clip_gradients: float = arg(100.0, "clip the gradient's global norm here; 0 = never", low=0)
    unimix: float = arg(0.01, "share of a uniform distribution in discrete actions", low=0, high=1)
    action_clip: float = arg(1.0, "largest continuous action that the model is given; 0: as it is", low=0)
    moments: MomentsConfig = arg(MomentsConfig(), "scale of the returns")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-5, eps=1e-5), "its own")

    @property
    def explores(self) -> bool:
        """Actions get noise while they are collected."""
        return False

    def policy(self, kind: str) -> PolicyForm:
        """Distribution of actions of that kind."""
        spread = self.min_std, self.max_std, self.init_std
        return PolicyForm(kind, self.unimix, *spread, self.action_clip, self.cls == MASKED)


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
    world_model: WorldModelConfig = arg(WorldModelConfig(), "the world model")
    actor: ActorConfig = arg(ActorConfig(), "the actor")
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
