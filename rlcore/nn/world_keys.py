"""Keys of world models that several Dreamers have; without torch, for a mistake is told before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlcore.config.schema import Needs, arg
from rlcore.nn.network_keys import ACTIVATIONS

MASKED = "masked_actor"
ACTORS = ("actor", MASKED)
WORLD = "world_model"  # the part that a world model is, by SheepRL's names for parts
# Those of every learner around one -> their places in its state (`registers`).
WORLD_PARTS = {WORLD: "agent.world", "actor": "agent.actor", "critic": "critic"}


class Form(NamedTuple):
    """Norm, bias and initialisation that the layers of one paper's networks share; without arguments, Dreamer V1's."""

    eps: float | None = None  # added to the variance of a LayerNorm before each activation; None: there is none
    bias: bool = True  # of every layer, beside a norm too
    scale: float | None = 1.0  # of hidden layers' weights, as `rlcore.nn.dense.initialise_glorot` has it


class Layers(NamedTuple):
    """Hidden layers of (linear, LayerNorm, activation)."""

    units: int
    count: int
    act: str
    form: Form


class Stages(NamedTuple):
    """Stages of convolutions: 2ⁱ times the multiplier channels after stage i."""

    multiplier: int
    act: str
    form: Form
    padded: bool  # each halves its image, down to 4 × 4 pixels; false: four without padding, of 64 × 64 pixels


class PolicyForm(NamedTuple):
    """Distribution of an actor's actions; all but the first two are of continuous ones."""

    kind: str  # "discrete", or a key of `rlcore.nn.latent_actor.CONTINUOUS`
    unimix: float = 0.0  # share of a uniform distribution in discrete ones
    min_std: float = 0.1
    max_std: float = 1.0  # of "scaled" alone
    init_std: float = 0.0
    largest: float = 0.0  # that the model is given; 0: as it is
    masked: bool = False  # discrete ones are kept to what the environment's masks allow


class Group:
    """Base of the groups whose layers have a form."""

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of the group's layers."""
        return Form()


@dataclass(frozen=True)
class DenseKeys(Group):
    """Hidden layers of a perceptron."""

    dense_units: int = arg(400, "units of each hidden layer", low=1)
    mlp_layers: int = arg(4, "hidden layers", low=0)
    dense_act: str = arg("elu", "activation (torch.nn.ELU and the like are accepted)", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> Layers:
        """The hidden layers."""
        return Layers(self.dense_units, self.mlp_layers, self.dense_act, self.form)


@dataclass(frozen=True)
class HiddenKeys(Group):
    """One hidden layer."""

    hidden_size: int = arg(200, "its units", low=1)
    dense_act: str = arg("elu", "its activation", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> Layers:
        """The layer as hidden layers, one of them."""
        return Layers(self.hidden_size, 1, self.dense_act, self.form)


@dataclass(frozen=True)
class RecurrentKeys(Group):
    """The recurrent state and the layer before its cell."""

    act: ClassVar[str] = "elu"  # of that layer

    recurrent_state_size: int = arg(200, "numbers of the deterministic state h", low=1)
    dense_units: int = arg(400, "units of the layer of latent and action before the cell", low=1)

    @property
    def layers(self) -> Layers:
        """The layer before the cell."""
        return Layers(self.dense_units, 1, self.act, self.form)

    @property
    def cell(self) -> Form | None:
        """Norm and bias of a `rlcore.nn.dense.LayerNormGRU`'s gates; None: it is a `rlcore.nn.dense.PlainGRU`."""
        return None


@dataclass(frozen=True)
class ObservationKeys(Group):
    """Networks of one side, encoder or decoder: of images in stages of convolutions, of vectors one perceptron."""

    symlog: ClassVar[bool] = False  # vectors are seen and reconstructed in symlog space

    cnn_channels_multiplier: int = arg(32, "channels of the largest image's convolution; others have multiples", low=1)
    cnn_act: str = arg("relu", "activation of convolutions", choices=tuple(ACTIVATIONS))
    dense_units: int = arg(400, "units of each hidden layer", low=1)
    mlp_layers: int = arg(4, "hidden layers", low=0)
    dense_act: str = arg("elu", "activation", choices=tuple(ACTIVATIONS))

    @property
    def layers(self) -> Layers:
        """The perceptron of the vectors."""
        return Layers(self.dense_units, self.mlp_layers, self.dense_act, self.form)

    @property
    def stages(self) -> Stages:
        """The convolutions of the images."""
        return Stages(self.cnn_channels_multiplier, self.cnn_act, self.form, padded=False)


@dataclass(frozen=True)
class DiscountKeys(DenseKeys):
    """The head that says whether the episode goes on."""

    learnable: bool = arg(True, "of SheepRL's files", unused="algo.world_model.use_continues says whether there is one")


@dataclass(frozen=True)
class WorldKeys:
    """Keys of every world model; its algorithm adds the weights of its losses, and the form of its latents."""

    stochastic_size: int = arg(32, "latent variables", low=1)
    kl_free_nats: float = arg(1.0, "KL of a step below which it trains nothing, nats", low=0)
    kl_regularizer: float = arg(1.0, "weight of the KL's loss", low=0)
    clip_gradients: float = arg(100.0, "clip the gradient's global norm here; 0 = never", low=0)
    encoder: ObservationKeys = arg(ObservationKeys(), "encoder of observations")
    recurrent_model: RecurrentKeys = arg(RecurrentKeys(), "recurrent state")
    transition_model: HiddenKeys = arg(HiddenKeys(), "prior")
    representation_model: HiddenKeys = arg(HiddenKeys(), "posterior")
    observation_model: ObservationKeys = arg(ObservationKeys(), "decoder of observations")
    reward_model: DenseKeys = arg(DenseKeys(), "head of the reward")
    discount_model: DenseKeys = arg(DiscountKeys(), "head of the episodes' ends")

    @property
    def decoupled(self) -> bool:
        """The posterior sees the observation alone, not the recurrent state."""
        return False

    @property
    def begin(self) -> str:
        """State at an episode's start: "zeros"; "prior": of z the mode; "learned": of h too, as tanh of parameters."""
        return "zeros"

    @property
    def ends(self) -> bool:
        """A head says whether the episode goes on."""
        return True


@dataclass(frozen=True)
class ActorKeys(DenseKeys):
    """The actor of V1 and V2, who sees the model's states, and the noise by which it explores."""

    cls: str = arg("actor", "which; masked_actor takes choices that the environment's masks allow", choices=ACTORS)
    min_std: float = arg(0.1, "added to the std of a continuous action", above=0)
    init_std: float = arg(0.0, "added to what the network gives for the std")
    clip_gradients: float = arg(100.0, "clip the gradient's global norm here; 0 = never", low=0)
    expl_amount: float = arg(
        0.0, "training: std of noise in a continuous action of -1 to 1; chance of a random discrete one", low=0
    )
    expl_decay: float = arg(
        0.0,
        "policy steps in which it halves; 0: it stays",
        low=0,
        needs=Needs("expl_amount", lambda amount: amount > 0, " above 0"),
    )
    expl_min: float = arg(0.0, "below which it does not fall", low=0)

    def policy(self, kind: str) -> PolicyForm:
        """Distribution of actions of that kind."""
        return PolicyForm(kind, min_std=self.min_std, init_std=self.init_std, masked=self.cls == MASKED)

    @property
    def explores(self) -> bool:
        """Actions get noise while they are collected."""
        return max(self.expl_amount, self.expl_min) > 0

    def exploration(self, policy_steps: int) -> float:
        """Amount of noise after so many policy steps."""
        halved = 0.5 ** (policy_steps / self.expl_decay) if self.expl_decay else 1.0
        return max(self.expl_amount * halved, self.expl_min)


@dataclass(frozen=True)
class EndsKeys(WorldKeys):
    """World model of V1 and V2, whose head of the episodes' ends is off where no key asks for it."""

    use_continues: bool = arg(False, "a head learns whether the episode goes on; false: every imagined one does")

    @property
    def ends(self) -> bool:
        """A head says whether the episode goes on."""
        return self.use_continues


@dataclass(frozen=True)
class PercentileConfig:
    """Shares that say which returns count as low and high."""

    low: float = arg(0.05, "share of the returns below the low one", low=0, high=1)
    high: float = arg(0.95, "share of the returns below the high one", low=0, high=1)


@dataclass(frozen=True)
class MomentsConfig:
    """Scale of the returns, by which advantages are divided."""

    decay: float = arg(0.99, "share of the old scale that stays with every gradient step", low=0, high=1)
    max: float = arg(1.0, "advantages are divided by 1 / max at least: small returns are not made large", above=0)
    percentile: PercentileConfig = arg(PercentileConfig(), "which returns")
