"""Config keys of Dreamer V3.5, with SheepRL's names; the defaults are those of SheepRL's size 1M."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.dreamer_v3.config import check_limits, refuse_distribution
from rlcore.algorithms.dreamer.dreamer_v3_5.layer_keys import (
    DecoderConfig,
    DenseConfig,
    EncoderConfig,
    HeadConfig,
    PosteriorConfig,
    PriorConfig,
    RecurrentConfig,
    RewardConfig,
    mlp,
)
from rlcore.algorithms.dreamer.state_keys import StateKeys
from rlcore.algorithms.dreamer.world_keys import ACTORS, MASKED, WORLD_PARTS, MLPSpec, MomentsConfig, PolicySpec
from rlcore.config.build import convert
from rlcore.config.schema import arg, other_default
from rlcore.errors import UserError
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig

INIT_STD = 2.0  # added to the network's std output before the sigmoid
LOSS_SCALES = {
    "observation": 1.0,
    "reward": 1.0,
    "continue": 1.0,
    "dynamic": 1.0,
    "representation": 0.1,
    "policy": 1.0,
    "value": 1.0,
    "replay_value": 0.3,
}


@dataclass(frozen=True)
class WorldModelConfig(StateKeys):
    """Config keys of the world model."""

    discrete_size: int = arg(4, "classes of a latent variable", low=2)
    stochastic_size: int = arg(32, "number of latent variables", low=1)
    unimix: float = arg(0.01, "weight of the uniform distribution mixed into the latent variables", low=0, high=1)
    kl_free_nats: float = arg(1.0, "free nats: a KL loss has no gradient if the KL is below this", low=0)
    continue_discount: bool = arg(
        True, "the continue head predicts gamma instead of 1 if the episode continues; imagination then uses no gamma"
    )
    reward_grad: bool = arg(True, "the reward loss trains the model states")
    encoder: EncoderConfig = arg(EncoderConfig(), "encoder of observations")
    recurrent_model: RecurrentConfig = arg(RecurrentConfig(), "recurrent state")
    transition_model: PriorConfig = arg(PriorConfig(), "prior")
    representation_model: PosteriorConfig = arg(PosteriorConfig(), "posterior")
    observation_model: DecoderConfig = arg(DecoderConfig(), "decoder of observations")
    reward_model: RewardConfig = arg(RewardConfig(), "reward head")
    discount_model: HeadConfig = arg(HeadConfig(), "continue head")

    @property
    def prior(self) -> MLPSpec:
        """Settings of the hidden layers of the prior."""
        return mlp(self.transition_model.hidden_size, self.transition_model.layers)

    @property
    def posterior(self) -> MLPSpec:
        """Settings of the hidden layer of the posterior."""
        return mlp(self.representation_model.hidden_size, 1)


@dataclass(frozen=True)
class ActorConfig(DenseConfig):
    """Config keys of the actor, which selects actions from model states."""

    cls: str = arg("actor", "actor class; masked_actor obeys the environment's action masks", choices=ACTORS)
    ent_coef: float = arg(3e-4, "η: weight of the entropy bonus", low=0)
    min_std: float = arg(0.1, "lowest std of a continuous action", above=0)
    max_std: float = arg(1.0, "highest std of a continuous action", above=0)
    unimix: float = arg(0.01, "weight of the uniform distribution mixed into discrete policies", low=0, high=1)
    outscale: float = arg(0.01, "scale of the initial weights of the output layer", low=0)
    moments: MomentsConfig = arg(MomentsConfig(), "scale of the returns")

    def exploration(self, policy_steps: int) -> float:
        """Return 0, because Dreamer V3 adds no exploration noise during collection."""
        return 0.0

    def policy(self, kind: str) -> PolicySpec:
        """Return the settings of the policy distribution; `kind` is its name, "discrete" or "scaled"."""
        return PolicySpec(kind, self.unimix, self.min_std, self.max_std, INIT_STD, 1.0, self.cls == MASKED)


@dataclass(frozen=True)
class CriticConfig(DenseConfig):
    """Config keys of the critic and its target critic."""

    bins: int = other_default(RewardConfig, "bins", 255)
    outscale: float = arg(0.0, "scale of the initial weights of the output layer", low=0)
    per_rank_target_network_update_freq: int = arg(1, "gradient steps between updates of the target critic", low=1)
    tau: float = arg(0.02, "τ of the soft update of the target critic", above=0, high=1)
    slow_regularizer: float = arg(1.0, "weight of the loss towards the values of the target critic", low=0)
    replay_loss: bool = arg(True, "train the critic also on the model states of the replayed sequences")
    replay_grad: bool = arg(True, "the loss of the critic on replayed sequences trains the model states")

    def target_tau(self, update: int) -> float:
        """Return τ of the target critic's soft update after gradient step number `update`; 0 = no update."""
        return 0.0 if update % self.per_rank_target_network_update_freq else self.tau


@dataclass(frozen=True)
class JointOptimizerConfig(OptimizerConfig):
    """Config keys of the optimizer of world model, actor and critic."""

    name: str = other_default(OptimizerConfig, "name", "laprop")
    lr: float = other_default(OptimizerConfig, "lr", 4e-5)
    eps: float | None = other_default(OptimizerConfig, "eps", 1e-20)
    warmup: int = other_default(OptimizerConfig, "warmup", 1000)
    clip_norm: str = arg("adaptive", "norm to clip, see agc; only adaptive is possible", choices=("adaptive",))
    agc: float = arg(
        0.3,
        "adaptive clipping: largest norm of the gradient of a tensor, divided by the norm of the tensor; 0 = no "
        "clipping",
        low=0,
    )
    agc_pmin: float = arg(1e-3, "adaptive clipping: smallest norm of a tensor; only 0.001 is possible", choices=(1e-3,))


@dataclass(frozen=True, kw_only=True)
class Config(DreamerConfig):
    """Config keys of Dreamer V3.5."""

    exported_components: ClassVar[Mapping[str, str]] = WORLD_PARTS | {
        "target_critic": "target_critic",
        "moments": "moments",
    }
    continuous: ClassVar[tuple[str, ...]] = ("scaled",)

    name: str = arg("dreamer_v3_5", "name of the algorithm", choices=("dreamer_v3_5",))
    gamma: float = other_default(DreamerConfig, "gamma", 0.996996996996997)
    replay_ratio: float = other_default(DreamerConfig, "replay_ratio", 1 / 32)
    per_rank_sequence_length: int = other_default(DreamerConfig, "per_rank_sequence_length", 64)
    learning_starts: int = arg(1024, "policy steps before the first gradient step; their actions are not random", low=0)
    replay_context: int = arg(
        1,
        "1 = store model states with the rows of the replay buffer: a sequence starts from the state of the row before "
        "it, and new states are written back; 0 = sequences start from zeros",
        choices=(0, 1),
    )
    dense_units: int = other_default(DreamerConfig, "dense_units", 64)
    mlp_layers: int = other_default(DreamerConfig, "mlp_layers", 3)
    dense_act: str = other_default(DreamerConfig, "dense_act", "silu")
    cnn_act: str = other_default(DreamerConfig, "cnn_act", "silu")
    norm_eps: float = arg(1e-4, "ε of the RMSNorm of all layers", above=0)
    cnn_channels_multiplier: int = other_default(EncoderConfig, "cnn_channels_multiplier", 4)
    cnn_stages: tuple[int, ...] = other_default(EncoderConfig, "cnn_stages", (2, 3, 4, 4))
    cnn_kernel_size: int = other_default(EncoderConfig, "cnn_kernel_size", 5)
    loss_scales: dict[str, Any] = arg(LOSS_SCALES, f"weights of the losses: {', '.join(LOSS_SCALES)}")
    world_model: WorldModelConfig = arg(WorldModelConfig(), "world model")
    actor: ActorConfig = arg(ActorConfig(), "actor")
    critic: CriticConfig = arg(CriticConfig(), "critic")
    optimizer: JointOptimizerConfig = arg(JointOptimizerConfig(), "optimizer of world model, actor and critic")

    @property
    def imagined_gamma(self) -> float:
        """Discount of imagined steps: 1 if the continue head predicts the discount, otherwise `gamma`."""
        return 1.0 if self.world_model.continue_discount else self.gamma

    def scale(self, loss: str) -> float:
        """Return the weight of a loss; `loss` is a name in `loss_scales`."""
        return float(self.loss_scales.get(loss, LOSS_SCALES[loss]))

    def update_rule(self, settings: OptimizerConfig) -> OptimizerConfig:
        """Return the settings from which the optimizer is built; with `agc=0`, gradients are not clipped."""
        return settings if self.optimizer.agc else replace(settings, clip_norm="global")

    def random_steps(self, width: int) -> int:
        """Return 0: the policy selects all actions, also those before the first gradient step."""
        return 0

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        names = {name for name in super().metric_names() if not name.startswith(("Grads/", "Params/exploration"))}
        more = {"Loss/replay_value_loss", "Actor/entropy", "Values/return", "Values/value", "Grads/agent"}
        return frozenset(names | more)

    def accepts_side(self, side: int) -> bool:
        """Return True if each stage of the convolutions can halve images of `side` × `side` pixels."""
        return side % self._halved == 0

    @property
    def accepted_images(self) -> str:
        """Description of the images that the convolutions accept, for messages."""
        return f"square images whose side is a multiple of {self._halved} (2 to the number of cnn_stages)"

    @property
    def _halved(self) -> int:
        model = self.world_model
        return 2 ** max(len(part.cnn_stages) for part in (model.encoder, model.observation_model))

    @property
    def sequence_rows(self) -> int:
        """Number of rows of the replay buffer from which one sequence is made."""
        return super().sequence_rows + self.replay_context

    def check(self, prefix: str) -> None:
        """Raise UserError if values of this group contradict each other.

        `prefix` is the dotted path of this config group, with a dot at the end.
        """
        super().check(prefix)
        check_limits(self.actor, prefix)
        self._check_networks(f"{prefix}world_model.")
        for name, value in self.loss_scales.items():
            if name not in LOSS_SCALES:
                raise UserError(f"unknown key {prefix}loss_scales.{name}; known keys: {', '.join(LOSS_SCALES)}")
            if convert(value, float, f"{prefix}loss_scales.{name}") < 0:
                raise UserError(f"{prefix}loss_scales.{name}={value}: must be a number that is >= 0")

    def _check_networks(self, prefix: str) -> None:
        recurrent, decoder = self.world_model.recurrent_model, self.world_model.observation_model
        size = ("recurrent_model.recurrent_state_size", recurrent.recurrent_state_size)
        divided = [("recurrent_model.blocks", recurrent.blocks, *size)]
        if self.cnn_keys.decoded and decoder.block_space:
            space = ("observation_model.block_space", decoder.block_space)
            last = ("observation_model.cnn_channels_multiplier", decoder.channels[-1])
            divided += [(*space, *size), (*space, *last)]
        for key, blocks, other, number in divided:
            if number % blocks:
                raise UserError(
                    f"{prefix}{key}={blocks}: must divide {number}, which follows from {prefix}{other}; change one of "
                    "them"
                )

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if `distribution.type` is not available, or if the replay buffer is too small.

        The replay buffer must be able to store one training sequence per environment.
        """
        super().check_with(run)
        refuse_distribution(self.name, run)
