"""Config keys that all Dreamer algorithms share: sequences, imagination, and defaults of network sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rlcore.algorithms.dreamer.world_keys import MASKED, WORLD_PARTS
from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.config.run import VECTORS
from rlcore.config.schema import arg, other_default
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, DecodedKeysConfig, check_keys
from rlcore.spec import ActionSpec

if TYPE_CHECKING:
    from rlcore.algorithms.dreamer.world_groups import WorldGroup
    from rlcore.algorithms.dreamer.world_keys import MLPSpec, PolicySpec
    from rlcore.config.run import RunConfig
    from rlcore.optim.optimizer_keys import OptimizerConfig
    from rlcore.spec import EnvSpec

SMALLEST = 8  # smallest image side in pixels; one stage of convolutions reduces it to 4


class TrainedGroup(Protocol):
    """Config keys of a network and its optimizer."""

    @property
    def clip_gradients(self) -> float:
        """Maximum gradient norm; 0 = no clipping."""
        ...

    @property
    def optimizer(self) -> OptimizerConfig:
        """Optimizer of the network."""
        ...


class ActorGroup(Protocol):
    """Config keys that the actors of all Dreamers have."""

    @property
    def cls(self) -> str:
        """Class of the actor; `MASKED` obeys the environment's action masks."""
        ...

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layers."""
        ...

    def policy(self, kind: str) -> PolicySpec:
        """Return the settings of the policy distribution; `kind` is its name, such as "tanh_normal"."""
        ...

    def exploration(self, policy_steps: int) -> float:
        """Return the amount of exploration noise after `policy_steps` steps; 0 = no noise."""
        ...


class CriticGroup(Protocol):
    """Config keys that the critics of all Dreamers have."""

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layers."""
        ...

    def target_tau(self, update: int) -> float | None:
        """Return τ of the target critic's update before gradient step `update`; None = there is no target critic."""
        ...


class TrainedDreamerConfig(Protocol):
    """Config of a Dreamer of which each network has its own optimizer (Dreamer V1 to V3)."""

    @property
    def world_model(self) -> TrainedGroup:
        """Keys of the world model and its optimizer."""
        ...

    @property
    def actor(self) -> TrainedGroup:
        """Keys of the actor and its optimizer."""
        ...

    @property
    def critic(self) -> TrainedGroup:
        """Keys of the critic and its optimizer."""
        ...


@dataclass(frozen=True, kw_only=True)
class DreamerConfig(ReplayConfig):
    """Base class of the configs of Dreamer V1, V2 and V3, with the keys that all three have."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}
    obeys_masks_with: ClassVar[str] = f"algo.actor.cls={MASKED}"
    exported_components: ClassVar[Mapping[str, str]] = WORLD_PARTS
    side: ClassVar[int | None] = 64  # image side in pixels that the convolutions accept; None: any power of two
    amount_metrics: ClassVar[tuple[str, ...]] = ("Params/exploration_amount",)  # names of the amount of noise
    # Values of `distribution.type` for continuous actions; "auto" selects the first one.
    continuous: ClassVar[tuple[str, ...]] = ("trunc_normal", "tanh_normal", "normal")

    lmbda: float = arg(0.95, "λ of the λ-return", low=0, high=1)
    horizon: int = arg(15, "imagination horizon, in steps", low=1)
    normalize_actions: bool = arg(
        True, "map continuous actions from [-1, 1] to the bounds of a Box; false = clip them to the bounds"
    )
    per_rank_batch_size: int = arg(16, "sequences in the batch of a gradient step", low=1)
    per_rank_sequence_length: int = arg(50, "time steps in a sequence", low=2)
    learning_starts: int = other_default(ReplayConfig, "learning_starts", 1000)
    mlp_keys: DecodedKeysConfig = arg(DecodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: DecodedKeysConfig = arg(DecodedKeysConfig(), "image observation keys")
    dense_units: int = arg(400, "default number of units in each hidden layer", low=1)
    mlp_layers: int = arg(4, "default number of hidden layers", low=0)
    dense_act: str = arg("elu", "default activation", choices=tuple(ACTIVATIONS))
    cnn_act: str = arg("elu", "default activation of convolutions", choices=tuple(ACTIVATIONS))

    if TYPE_CHECKING:  # groups that each derived config defines, with keys and defaults of its own
        world_model: WorldGroup
        actor: ActorGroup
        critic: CriticGroup

    def check(self, prefix: str) -> None:
        """Raise UserError if no observation key is reconstructed.

        `prefix` is the dotted path of this config group, with a dot at the end.
        """
        super().check(prefix)
        seen = self.mlp_keys.encoder + self.cnn_keys.encoder
        if seen and not self.mlp_keys.decoded + self.cnn_keys.decoded:
            raise UserError(
                f"{prefix}mlp_keys.decoder=[]: the world model must reconstruct at least one observation; "
                f"name at least one of {', '.join(seen)}"
            )

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        terms = ("world_model", "observation", "reward", "continue", "state", "policy", "value")
        names = {f"Loss/{name}_loss" for name in terms} | {
            f"State/{name}" for name in ("kl", "post_entropy", "prior_entropy")
        }
        norms = {f"Grads/{name}" for name in ("world_model", "actor", "critic")}
        return super().metric_names() | names | norms | {*self.amount_metrics}

    @property
    def sequence_rows(self) -> int:
        """Number of rows of the replay buffer from which one sequence is made."""
        return self.per_rank_sequence_length

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the replay buffer cannot store one training sequence per environment."""
        rows, length = self.rows(run.buffer.size, run.width), self.sequence_rows
        if rows <= length:
            raise UserError(
                f"algo.per_rank_sequence_length={self.per_rank_sequence_length}: must be less than the rows that the "
                f"replay buffer stores per environment ({rows} rows, from buffer.size={spell(run.buffer.size)} and "
                f"{run.width} environments); decrease it, or set buffer.size to at least {run.width * (length + 1)}"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if this config cannot be used with the environment.

        The reasons are unknown observation keys, images of unsupported size, and a masked actor for an environment that
        provides no action masks. Composite actions are not supported.
        """
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, SMALLEST)
        if spec.action.parts:
            raise UserError(
                f"algo.name={self.name}: {spec.id} has a Dict or Tuple action space, for which only ppo, a2c and "
                "ppo_recurrent are available; use exp=ppo"
            )
        if self.actor.cls == MASKED and not spec.mask_keys:
            choices = f"for its {sum(spec.action.nvec)} choices" if spec.action.nvec else "for its continuous action"
            raise UserError(
                f"algo.actor.cls={MASKED}: {spec.id} has no action masks {choices}; masks are observations with one "
                "entry per choice, under keys that start with action_mask or mask; set it to actor"
            )
        for key in self.cnn_keys.encoder:
            height, width = spec.obs[key].pixels
            if height != width or not self.accepts_side(height):
                raise UserError(
                    f"algo.cnn_keys.encoder: {key} has {height} × {width} pixels, but the convolutions take "
                    f"{self.accepted_images}; set env.screen_size to 64"
                )

    def accepts_side(self, side: int) -> bool:
        """Return True if the convolutions accept images of `side` × `side` pixels."""
        return side == self.side if self.side else math.log2(side).is_integer()

    @property
    def accepted_images(self) -> str:
        """Description of the images that the convolutions accept, for messages."""
        return f"{self.side} × {self.side} pixels" if self.side else "square images with a power of two as side"

    def update_rule(self, settings: OptimizerConfig) -> OptimizerConfig:
        """Return the settings from which an optimizer is built; a derived config can change them."""
        return settings

    def policy_kind(self, action: ActionSpec, distribution: str) -> str:
        """Return the name of the policy distribution for an action space.

        `distribution` is the value of `distribution.type`; "auto" selects the default. Raise UserError if the
        distribution is not available for this action space.
        """
        fitting = self.continuous if action.continuous else ("discrete",)
        kind = fitting[0] if distribution == "auto" else distribution
        if kind not in fitting:
            allowed = ", ".join(("auto", *fitting))
            raise UserError(
                f"distribution.type={kind}: not available for a {action.space} action; must be one of {allowed}"
            )
        return kind

    @property
    def obeys_masks(self) -> bool:
        """True if the actor chooses only actions that the environment's masks allow."""
        return self.actor.cls == MASKED

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Yield notices about keys that have no effect or less effect than their value suggests.

        The notices are about stacked frames, which are ignored, sequences that are overwritten before they are sampled,
        and a first gradient step later than `learning_starts`.
        """
        if run.env.frame_stack > 1:
            yield (
                f"env.frame_stack={run.env.frame_stack}: {self.name} uses only the newest frame; its recurrent state "
                "represents the past"
            )
        rows, width, buffer = self.per_rank_sequence_length, run.width, run.buffer
        if buffer.online and self.replay_ratio * self.per_rank_batch_size * rows < 1:
            yield (
                f"buffer.online=true: every {rows} rows complete a new sequence, but algo.replay_ratio="
                f"{self.replay_ratio:g} draws less than one sequence in that time; some sequences are overwritten "
                "before they are drawn"
            )
        if rows * width > max(self.first_steps(width), width):
            yield (
                f"algo.learning_starts={self.learning_starts}: learning starts after {rows * width} policy steps, when "
                f"each of {width} environments has a sequence "
                f"(algo.per_rank_sequence_length={self.per_rank_sequence_length})"
            )
