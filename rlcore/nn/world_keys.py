"""Keys of the networks of a world model; without torch, for a mistake is told before it is loaded.

Of each group there are the keys that all Dreamers have (`...Keys`), and those of V3, which chooses its norms
(`...Config`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rlcore.config.schema import arg, other_default
from rlcore.nn.network_keys import ACTIVATIONS

MASKED = "masked_actor"
ACTORS = ("actor", MASKED)
NORMS = ("layer_norm", "identity")
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
    expl_decay: float = arg(0.0, "policy steps in which it halves; 0: it stays", low=0)
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

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of layers, which have no bias before a norm."""
        return Form(self.eps, self.eps is None, None)


class Normed(Group):
    """Base of V3's groups of layers with one norm."""

    layer_norm: NormConfig

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of the group's layers."""
        return self.layer_norm.form


@dataclass(frozen=True)
class DenseConfig(Normed, DenseKeys):
    """Hidden layers of (linear, LayerNorm, activation)."""

    dense_units: int = other_default(DenseKeys, "dense_units", 256)
    mlp_layers: int = other_default(DenseKeys, "mlp_layers", 1)
    dense_act: str = other_default(DenseKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "before each activation")


@dataclass(frozen=True)
class HiddenConfig(Normed, HiddenKeys):
    """One hidden layer of (linear, LayerNorm, activation)."""

    hidden_size: int = other_default(HiddenKeys, "hidden_size", 256)
    dense_act: str = other_default(HiddenKeys, "dense_act", "silu")
    layer_norm: NormConfig = arg(NormConfig(), "before it")


@dataclass(frozen=True)
class RecurrentConfig(Normed, RecurrentKeys):
    """The recurrent state and the layer before its cell."""

    act: ClassVar[str] = "silu"

    recurrent_state_size: int = other_default(RecurrentKeys, "recurrent_state_size", 256)
    dense_units: int = other_default(RecurrentKeys, "dense_units", 256)
    layer_norm: NormConfig = arg(NormConfig(), "of that layer, and of the cell's gates")

    @property
    def cell(self) -> Form:
        """Norm and bias of the gates of a `rlcore.nn.dense.LayerNormGRU`."""
        return self.form._replace(bias=False)


@dataclass(frozen=True)
class ObservationConfig(ObservationKeys):
    """Networks of one side, encoder or decoder: of images in stages of convolutions, of vectors one perceptron."""

    symlog: ClassVar[bool] = True

    cnn_channels_multiplier: int = other_default(ObservationKeys, "cnn_channels_multiplier", 24)
    cnn_act: str = other_default(ObservationKeys, "cnn_act", "silu")
    cnn_layer_norm: NormConfig = arg(NormConfig(), "of each pixel's channels, before it")
    dense_units: int = other_default(ObservationKeys, "dense_units", 256)
    mlp_layers: int = other_default(ObservationKeys, "mlp_layers", 1)
    dense_act: str = other_default(ObservationKeys, "dense_act", "silu")
    mlp_layer_norm: NormConfig = arg(NormConfig(), "before each activation")

    @property
    def form(self) -> Form:
        """Norm, bias and initialisation of the perceptron's layers."""
        return self.mlp_layer_norm.form

    @property
    def stages(self) -> Stages:
        """The convolutions of the images."""
        return Stages(self.cnn_channels_multiplier, self.cnn_act, self.cnn_layer_norm.form, padded=True)


@dataclass(frozen=True)
class TwoHotConfig(DenseConfig):
    """A head that gives a distribution over bins of a number."""

    bins: int = arg(255, "K: bins from -20 to 20 in symlog space", low=3)


@dataclass(frozen=True)
class DiscountConfig(DenseConfig):
    """The head that says whether the episode goes on."""

    learnable: bool = arg(True, "of SheepRL's files", unused="it is always learned")


@dataclass(frozen=True)
class WorldModelConfig(WorldKeys):
    """The world model."""

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

    @property
    def decoupled(self) -> bool:
        """The posterior sees the observation alone, not the recurrent state."""
        return self.decoupled_rssm

    @property
    def begin(self) -> str:
        """State at an episode's start."""
        return "learned" if self.learnable_initial_recurrent_state else "prior"


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


@dataclass(frozen=True)
class LatentActorConfig(DenseConfig):
    """The actor, who sees the model's states."""

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

    @property
    def explores(self) -> bool:
        """Actions get noise while they are collected."""
        return False

    def policy(self, kind: str) -> PolicyForm:
        """Distribution of actions of that kind."""
        spread = self.min_std, self.max_std, self.init_std
        return PolicyForm(kind, self.unimix, *spread, self.action_clip, self.cls == MASKED)
