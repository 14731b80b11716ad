"""Config keys of world models and actors, shared by Dreamer V1, V2 and V3.

This module does not import torch, so an error in a config is reported without waiting for the import of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rlcore.algorithms.dreamer.state_keys import StateKeys
from rlcore.config.schema import Needs, arg
from rlcore.nn.network_keys import ACTIVATIONS
from rlcore.optim.optimizer_keys import OptimizerConfig

MASKED = "masked_actor"
ACTORS = ("actor", MASKED)
WORLD = "world_model"  # SheepRL's name of the world model in the model registry
# Value of `exported_components` for learners with a world model: name in the model registry -> path of the component
# in the learner's state.
WORLD_PARTS = {WORLD: "agent.world", "actor": "agent.actor", "critic": "critic"}


class InitConfig(NamedTuple):
    """Normalization, bias and initialization of the layers of a network; the defaults are those of Dreamer V1."""

    eps: float | None = None  # ε of a LayerNorm before each activation; None = no LayerNorm
    bias: bool = True  # layers have a bias, even if a norm follows
    scale: float | None = 1.0  # initialization scale of hidden layers; see `dense.initialise_glorot`


class MLPSpec(NamedTuple):
    """Settings of hidden layers; each one is a linear layer, an optional LayerNorm and an activation."""

    units: int
    count: int
    act: str
    form: InitConfig


class CNNSpec(NamedTuple):
    """Settings of the stages of a CNN. A stage is a convolution with stride 2, an optional LayerNorm and an activation.

    Stage i = 0, 1, … of an encoder has 2ⁱ · `multiplier` output channels.
    """

    multiplier: int
    act: str
    form: InitConfig
    padded: bool  # true: each stage halves the image, down to 4 × 4; false: four stages without padding, for 64 × 64


class PolicySpec(NamedTuple):
    """Type and settings of the distribution of an actor's actions."""

    kind: str  # "discrete", or a key of `latent_actor.CONTINUOUS`
    unimix: float = 0.0  # discrete actions: weight of the uniform distribution
    min_std: float = 0.1  # continuous actions: lowest std
    max_std: float = 1.0  # distribution "scaled": highest std
    init_std: float = 0.0  # continuous actions: added to the network's std output
    largest: float = 0.0  # maximum absolute value of continuous actions; 0 = no clipping
    masked: bool = False  # discrete actions obey the environment's masks


class LayerKeys:
    """Base class of config groups that describe the layers of a network."""

    @property
    def form(self) -> InitConfig:
        """Normalization, bias and initialization of this group's layers."""
        return InitConfig()


@dataclass(frozen=True)
class DenseKeys(LayerKeys):
    """Config keys of the hidden layers of an MLP."""

    dense_units: int = arg(400, "units of each hidden layer", low=1)
    mlp_layers: int = arg(4, "number of hidden layers", low=0)
    dense_act: str = arg("elu", "activation (or its class, such as torch.nn.ELU)", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layers."""
        return MLPSpec(self.dense_units, self.mlp_layers, self.dense_act, self.form)


@dataclass(frozen=True)
class HiddenKeys(LayerKeys):
    """Config keys of a network with one hidden layer."""

    hidden_size: int = arg(200, "units of the hidden layer", low=1)
    dense_act: str = arg("elu", "activation of the hidden layer", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layer."""
        return MLPSpec(self.hidden_size, 1, self.dense_act, self.form)


@dataclass(frozen=True)
class RecurrentKeys(LayerKeys):
    """Config keys of the recurrent cell, and of the dense layer before it."""

    act: ClassVar[str] = "elu"  # activation of the layer before the cell

    recurrent_state_size: int = arg(200, "size of the deterministic state h", low=1)
    dense_units: int = arg(400, "units of the layer before the cell, which reads stochastic state and action", low=1)

    @property
    def layers(self) -> MLPSpec:
        """Settings of the dense layer before the recurrent cell."""
        return MLPSpec(self.dense_units, 1, self.act, self.form)

    @property
    def cell(self) -> InitConfig | None:
        """Settings of the recurrent cell; they also select its class.

        Normalization and bias of the gates of a `dense.LayerNormGRU`, or None for a `dense.PlainGRU`.
        """
        return None


@dataclass(frozen=True)
class ObservationKeys(LayerKeys):
    """Config keys of an observation encoder or decoder: a CNN for images, an MLP for vectors."""

    symlog: ClassVar[bool] = False  # vectors are encoded and reconstructed in symlog space

    cnn_channels_multiplier: int = arg(
        32, "channels of the first encoder convolution; they double with each stage", low=1
    )
    cnn_act: str = arg("relu", "activation of convolutions", choices=tuple(ACTIVATIONS))
    dense_units: int = arg(400, "units of each hidden layer", low=1)
    mlp_layers: int = arg(4, "number of hidden layers", low=0)
    dense_act: str = arg("elu", "activation of hidden layers", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> MLPSpec:
        """Settings of the MLP for vector observations."""
        return MLPSpec(self.dense_units, self.mlp_layers, self.dense_act, self.form)

    @property
    def stages(self) -> CNNSpec:
        """Settings of the CNN for image observations."""
        return CNNSpec(self.cnn_channels_multiplier, self.cnn_act, self.form, padded=False)


@dataclass(frozen=True)
class DiscountKeys(DenseKeys):
    """Config keys of the continue head, a network that predicts the discount at a model state.

    The training target is `gamma`, or 0 if the episode has terminated.
    """

    learnable: bool = arg(
        True, "train the continue head (SheepRL key)", unused="algo.world_model.use_continues enables the head"
    )


@dataclass(frozen=True)
class WorldKeys(StateKeys):
    """Config keys that the world models of Dreamer V1, V2 and V3 share.

    The subclass of an algorithm adds the weights of its losses and the settings of its stochastic state.
    """

    stochastic_size: int = arg(32, "number of stochastic state variables", low=1)
    kl_free_nats: float = arg(1.0, "free nats: the KL loss has no gradient if the KL is below this", low=0)
    kl_regularizer: float = arg(1.0, "weight of the KL loss", low=0)
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    encoder: ObservationKeys = arg(ObservationKeys(), "encoder of observations")
    recurrent_model: RecurrentKeys = arg(RecurrentKeys(), "recurrent state")
    transition_model: HiddenKeys = arg(HiddenKeys(), "prior")
    representation_model: HiddenKeys = arg(HiddenKeys(), "posterior")
    observation_model: ObservationKeys = arg(ObservationKeys(), "decoder of observations")
    reward_model: DenseKeys = arg(DenseKeys(), "reward head")
    discount_model: DenseKeys = arg(DiscountKeys(), "continue head")

    if TYPE_CHECKING:  # a key that each derived config defines, with its own defaults
        optimizer: OptimizerConfig = OptimizerConfig()

    @property
    def prior(self) -> MLPSpec:
        """Settings of the hidden layers of the prior."""
        return self.transition_model.layers

    @property
    def posterior(self) -> MLPSpec:
        """Settings of the hidden layer of the posterior."""
        return self.representation_model.layers


@dataclass(frozen=True)
class ActorKeys(DenseKeys):
    """Config keys of the actor of Dreamer V1 and V2, and of its exploration noise."""

    cls: str = arg("actor", "actor class; masked_actor obeys the environment's action masks", choices=ACTORS)
    min_std: float = arg(0.1, "added to the std of a continuous action", above=0)
    init_std: float = arg(0.0, "added to the network's std output")
    clip_gradients: float = arg(100.0, "maximum gradient norm; 0 = no clipping", low=0)
    expl_amount: float = arg(
        0.0, "exploration: std of noise in continuous actions, or probability of a random discrete action", low=0
    )
    expl_decay: float = arg(
        0.0,
        "half-life of expl_amount in policy steps; 0 = no decay",
        low=0,
        needs=Needs("expl_amount", lambda amount: amount > 0, " above 0"),
    )
    expl_min: float = arg(0.0, "lower limit of the decayed expl_amount", low=0)

    def policy(self, kind: str) -> PolicySpec:
        """Return the settings of the policy distribution; `kind` is its name, such as "tanh_normal"."""
        return PolicySpec(kind, min_std=self.min_std, init_std=self.init_std, masked=self.cls == MASKED)

    def exploration(self, policy_steps: int) -> float:
        """Return the amount of exploration noise after `policy_steps` steps; it decays exponentially to `expl_min`."""
        halved = 0.5 ** (policy_steps / self.expl_decay) if self.expl_decay else 1.0
        return max(self.expl_amount * halved, self.expl_min)


@dataclass(frozen=True)
class EndsKeys(WorldKeys):
    """Config keys that the world models of Dreamer V1 and V2 share; their continue head is optional."""

    use_continues: bool = arg(False, "train a continue head; false = imagined episodes never end")

    @property
    def ends(self) -> bool:
        """True if the world model has a continue head, which predicts whether an imagined episode continues."""
        return self.use_continues


@dataclass(frozen=True)
class PercentileConfig:
    """Config keys of the two percentiles of the returns that define the scale of the returns, their difference."""

    low: float = arg(0.05, "lower percentile of the returns, as a fraction", low=0, high=1)
    high: float = arg(0.95, "upper percentile of the returns, as a fraction", low=0, high=1)


@dataclass(frozen=True)
class MomentsConfig:
    """Config keys of the scale of the returns. Advantages are divided by this scale."""

    decay: float = arg(0.99, "decay of the moving average of the scale, per gradient step", low=0, high=1)
    max: float = arg(1.0, "the scale is at least 1 / max, so that small returns are not amplified", above=0)
    percentile: PercentileConfig = arg(PercentileConfig(), "percentiles of the returns")
