"""Keys of the networks of a world model; without torch, for a mistake is told before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.config.schema import arg
from rlcore.nn.network_keys import ACTIVATIONS

NORMS = ("layer_norm", "identity")


@dataclass(frozen=True)
class NormSettings:
    """Settings of a LayerNorm."""

    eps: float = arg(1e-3, "added to the variance", above=0)


@dataclass(frozen=True)
class NormConfig:
    """LayerNorm before an activation, under SheepRL's names."""

    cls: str = arg("layer_norm", "which; identity: none, and layers have biases", choices=NORMS)
    kw: NormSettings = arg(NormSettings(), "its settings")

    @property
    def eps(self) -> float | None:
        """Added to the variance; None: there is no norm."""
        return self.kw.eps if self.cls == "layer_norm" else None


@dataclass(frozen=True)
class DenseConfig:
    """Hidden layers of (linear, LayerNorm, activation)."""

    dense_units: int = arg(256, "units of each hidden layer", low=1)
    mlp_layers: int = arg(1, "hidden layers", low=0)
    dense_act: str = arg("silu", "activation (torch.nn.SiLU and the like are accepted)", choices=tuple(ACTIVATIONS))
    layer_norm: NormConfig = arg(NormConfig(), "before each activation")


@dataclass(frozen=True)
class HiddenConfig:
    """One hidden layer of (linear, LayerNorm, activation)."""

    hidden_size: int = arg(256, "its units", low=1)
    dense_act: str = arg("silu", "its activation", choices=tuple(ACTIVATIONS))
    layer_norm: NormConfig = arg(NormConfig(), "before it")

    @property
    def layers(self) -> DenseConfig:
        """The layer as hidden layers, one of them."""
        return DenseConfig(self.hidden_size, 1, self.dense_act, self.layer_norm)


@dataclass(frozen=True)
class RecurrentConfig:
    """The recurrent state and the layer before its cell."""

    recurrent_state_size: int = arg(256, "numbers of the deterministic state h", low=1)
    dense_units: int = arg(256, "units of the layer of latent and action before the cell", low=1)
    layer_norm: NormConfig = arg(NormConfig(), "of that layer, and of the cell's gates")


@dataclass(frozen=True)
class ObservationConfig:
    """Networks of one side, encoder or decoder: of images in stages of convolutions, of vectors one perceptron."""

    cnn_channels_multiplier: int = arg(24, "channels of the largest image's convolution; others have multiples", low=1)
    cnn_act: str = arg("silu", "activation of convolutions", choices=tuple(ACTIVATIONS))
    cnn_layer_norm: NormConfig = arg(NormConfig(), "of each pixel's channels, before it")
    dense_units: int = arg(256, "units of each hidden layer", low=1)
    mlp_layers: int = arg(1, "hidden layers", low=0)
    dense_act: str = arg("silu", "activation", choices=tuple(ACTIVATIONS))
    mlp_layer_norm: NormConfig = arg(NormConfig(), "before each activation")

    @property
    def layers(self) -> DenseConfig:
        """The perceptron of the vectors."""
        return DenseConfig(self.dense_units, self.mlp_layers, self.dense_act, self.mlp_layer_norm)


@dataclass(frozen=True)
class TwoHotConfig(DenseConfig):
    """A head that gives a distribution over bins of a number."""

    bins: int = arg(255, "K: bins from -20 to 20 in symlog space", low=3)


@dataclass(frozen=True)
class DiscountConfig(DenseConfig):
    """The head that says whether the episode goes on."""

    learnable: bool = arg(True, "of SheepRL's files", unused="it is always learned")


@dataclass(frozen=True)
class WorldModelConfig:
    """The world model."""

    discrete_size: int = arg(32, "classes of a latent variable", low=2)
    stochastic_size: int = arg(32, "latent variables", low=1)
    kl_dynamic: float = arg(0.5, "β_dyn: weight of the KL that trains the prior", low=0)
    kl_representation: float = arg(0.1, "β_rep: weight of the KL that trains the posterior", low=0)
    kl_free_nats: float = arg(1.0, "KL of a step below which neither is trained, nats", low=0)
    kl_regularizer: float = arg(1.0, "weight of both together", low=0)
    continue_scale_factor: float = arg(1.0, "weight of the loss of episodes' ends", low=0)
    clip_gradients: float = arg(1000.0, "clip the gradient's global norm here; 0 = never", low=0)
    decoupled_rssm: bool = arg(False, "the posterior sees the observation alone, not the recurrent state")
    learnable_initial_recurrent_state: bool = arg(True, "the state at an episode's start is learned; false: zeros")
    encoder: ObservationConfig = arg(ObservationConfig(), "encoder of observations")
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    transition_model: HiddenConfig = arg(HiddenConfig(), "prior")
    representation_model: HiddenConfig = arg(HiddenConfig(), "posterior")
    observation_model: ObservationConfig = arg(ObservationConfig(), "decoder of observations")
    reward_model: TwoHotConfig = arg(TwoHotConfig(), "head of the reward")
    discount_model: DiscountConfig = arg(DiscountConfig(), "head of the episodes' ends")


@dataclass(frozen=True)
class PercentileConfig:
    """Which returns count as low and high."""

    low: float = arg(0.05, "share of the returns below the low one", low=0, high=1)
    high: float = arg(0.95, "share of the returns below the high one", low=0, high=1)


@dataclass(frozen=True)
class MomentsConfig:
    """Scale of the returns, by which advantages are divided."""

    decay: float = arg(0.99, "share of the old scale that stays with every gradient step", low=0, high=1)
    max: float = arg(1.0, "advantages are divided by 1 / max at least: small returns are not made large", above=0)
    percentile: PercentileConfig = arg(PercentileConfig(), "which returns")


@dataclass(frozen=True)
class LatentActorConfig(DenseConfig):
    """The actor, who sees the model's states."""

    cls: str = arg("actor", "which; its class of SheepRL's is accepted", choices=("actor",))
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
