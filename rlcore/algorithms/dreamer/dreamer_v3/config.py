"""Config keys of Dreamer V3, with SheepRL's names; the defaults are those of SheepRL's size XS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.dreamer_v3.layer_keys import (
    DenseConfig,
    HiddenConfig,
    NormConfig,
    ObservationConfig,
    RecurrentConfig,
    TwoHotConfig,
)
from rlcore.algorithms.dreamer.world_keys import ACTORS, MASKED, WORLD_PARTS, MomentsConfig, PolicySpec, WorldKeys
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig


@dataclass(frozen=True)
class DiscountConfig(DenseConfig):
    """Config keys of the continue head, a network that predicts whether the episode continues."""

    learnable: bool = arg(True, "train the continue head (SheepRL key)", unused="it is always trained")
    imagined: str = arg(
        "mode",
        "continuation of imagined episodes: mode (0 or 1, the more likely one) or mean (the predicted probability)",
        choices=("mode", "mean"),
    )


@dataclass(frozen=True)
class WorldModelConfig(WorldKeys):
    """Config keys of the world model and its optimizer."""

    discrete_size: int = arg(32, "classes of a latent variable", low=2)
    kl_dynamic: float = arg(0.5, "β_dyn: weight of the KL that trains the prior", low=0)
    kl_representation: float = arg(0.1, "β_rep: weight of the KL that trains the posterior", low=0)
    continue_scale_factor: float = arg(1.0, "weight of the continue loss", low=0)
    clip_gradients: float = other_default(WorldKeys, "clip_gradients", 1000.0)
    decoupled_rssm: bool = arg(
        False, "the posterior depends only on the observation, not on the recurrent state (decoupled RSSM)"
    )
    learnable_initial_recurrent_state: bool = arg(
        True, "learn the recurrent state at the start of an episode; false = zeros"
    )
    encoder: ObservationConfig = arg(ObservationConfig(), "encoder of observations")
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    transition_model: HiddenConfig = arg(HiddenConfig(), "prior")
    representation_model: HiddenConfig = arg(HiddenConfig(), "posterior")
    observation_model: ObservationConfig = arg(ObservationConfig(), "decoder of observations")
    reward_model: TwoHotConfig = arg(TwoHotConfig(), "reward head")
    discount_model: DiscountConfig = arg(DiscountConfig(), "continue head")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=1e-4, eps=1e-8), "optimizer of the world model")

    @property
    def decoupled(self) -> bool:
        """True if the posterior depends only on the observation, not on the recurrent state."""
        return self.decoupled_rssm

    @property
    def begin(self) -> str:
        """Kind of the model state at the start of an episode, "learned" or "prior"; see `StateKeys.begin`."""
        return "learned" if self.learnable_initial_recurrent_state else "prior"


@dataclass(frozen=True)
class ActorConfig(DenseConfig):
    """Config keys of the actor, which selects actions from model states, and of its optimizer."""

    cls: str = arg("actor", "actor class; masked_actor obeys the environment's action masks", choices=ACTORS)
    ent_coef: float = arg(3e-4, "η: weight of the entropy bonus", low=0)
    objective_mix: float | None = arg(
        None,
        "ρ: weight of REINFORCE gradients; gradients through the model have the weight 1 - ρ; "
        "null = 1 for discrete actions, 0 for continuous actions",
        low=0,
        high=1,
    )
    min_std: float = arg(0.1, "lowest std of a continuous action", above=0)
    max_std: float = arg(1.0, "highest std of a continuous action", above=0)
    init_std: float = arg(2.0, "added to the network's std output before the sigmoid")
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    unimix: float = arg(0.01, "weight of the uniform distribution mixed into discrete policies", low=0, high=1)
    action_clip: float = arg(1.0, "clip sampled continuous actions to this absolute value; 0 = no clipping", low=0)
    moments: MomentsConfig = arg(MomentsConfig(), "scale of the returns")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-5, eps=1e-5), "optimizer of the actor")

    def exploration(self, policy_steps: int) -> float:
        """Return 0, because Dreamer V3 adds no exploration noise during collection."""
        return 0.0

    def policy(self, kind: str) -> PolicySpec:
        """Return the settings of the policy distribution; `kind` is its name, "discrete" or "scaled"."""
        spread = self.min_std, self.max_std, self.init_std
        return PolicySpec(kind, self.unimix, *spread, self.action_clip, self.cls == MASKED)


@dataclass(frozen=True)
class CriticConfig(TwoHotConfig):
    """Config keys of the critic, its target critic and its optimizer."""

    per_rank_target_network_update_freq: int = arg(1, "gradient steps between updates of the target critic", low=1)
    tau: float = arg(0.02, "τ of the soft update of the target critic", above=0, high=1)
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-5, eps=1e-5), "optimizer of the critic")

    def target_tau(self, update: int) -> float:
        """Return τ of the target critic's soft update before gradient step number `update`; 0 = no update."""
        return 0.0 if update % self.per_rank_target_network_update_freq else self.tau


class LimitedActor(Protocol):
    """Config keys of an actor that have a lower and an upper limit."""

    @property
    def min_std(self) -> float:
        """Lowest std of a continuous action."""
        ...

    @property
    def max_std(self) -> float:
        """Highest std of a continuous action."""
        ...

    @property
    def moments(self) -> MomentsConfig:
        """Scale of the returns."""
        ...


def check_limits(actor: LimitedActor, prefix: str) -> None:
    """Raise UserError if the lower percentile of returns is above the upper one, or `min_std` above `max_std`.

    `prefix` is the dotted path of the algorithm's config group, with a dot at the end.
    """
    low, high = actor.moments.percentile.low, actor.moments.percentile.high
    for name, less, upper, more in (
        ("moments.percentile.low", low, "moments.percentile.high", high),
        ("min_std", actor.min_std, "max_std", actor.max_std),
    ):
        if less > more:
            raise UserError(
                f"{prefix}actor.{name}={less:g}: must not be above {more:g}, the value of {prefix}actor.{upper}; "
                f"decrease {name.split('.')[-1]} or increase {upper.split('.')[-1]}"
            )


def refuse_distribution(name: str, run: RunConfig) -> None:
    """Raise UserError if `distribution.type` is set, because the algorithm `name` does not use it."""
    if run.distribution.type not in ("auto", "discrete"):
        kind = run.distribution.type
        raise UserError(
            f"distribution.type={kind}: {name} has a fixed distribution for each action space; set it to auto"
        )


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Config keys of Dreamer V3."""

    exported_components: ClassVar[Mapping[str, str]] = WORLD_PARTS | {
        "target_critic": "target_critic",
        "moments": "moments",
    }
    side: ClassVar[int | None] = None
    continuous: ClassVar[tuple[str, ...]] = ("scaled",)

    name: str = arg("dreamer_v3", "name of the algorithm", choices=("dreamer_v3",))
    gamma: float = other_default(DreamerConfig, "gamma", 0.996996996996997)
    per_rank_sequence_length: int = other_default(DreamerConfig, "per_rank_sequence_length", 64)
    learning_starts: int = other_default(DreamerConfig, "learning_starts", 1024)
    dense_units: int = other_default(DreamerConfig, "dense_units", 256)
    mlp_layers: int = other_default(DreamerConfig, "mlp_layers", 1)
    dense_act: str = other_default(DreamerConfig, "dense_act", "silu")
    cnn_act: str = other_default(DreamerConfig, "cnn_act", "silu")
    mlp_layer_norm: NormConfig = arg(NormConfig(), "default LayerNorm of MLPs")
    cnn_layer_norm: NormConfig = arg(NormConfig(), "default LayerNorm of convolutions")
    unimix: float = arg(0.01, "weight of the uniform distribution mixed into every categorical", low=0, high=1)
    hafner_initialization: bool = arg(
        True, "initialize output layers as the authors do (reward head and critic: zeros); false = like hidden layers"
    )
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    actor: ActorConfig = arg(ActorConfig(), "actor")
    critic: CriticConfig = arg(CriticConfig(), "critic")

    def check(self, prefix: str) -> None:
        """Raise UserError if the lower percentile of returns is above the upper one, or `min_std` above `max_std`.

        `prefix` is the dotted path of this config group, with a dot at the end.
        """
        super().check(prefix)
        check_limits(self.actor, prefix)

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if `distribution.type` is not available, or if the replay buffer is too small.

        The replay buffer must be able to store one training sequence per environment.
        """
        super().check_with(run)
        refuse_distribution(self.name, run)
