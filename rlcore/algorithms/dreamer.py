"""Keys that all Dreamers share: sequences, imagination, and what every network is by default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.config.algorithm import VECTORS
from rlcore.config.schema import arg, other_default
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import ACTIVATIONS, DecodedKeysConfig, check_keys
from rlcore.nn.world_keys import MASKED, WORLD_PARTS
from rlcore.spec import ActionSpec

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

SMALLEST = 8  # pixels a side, of which one stage of convolutions leaves four


@dataclass(frozen=True, kw_only=True)
class DreamerConfig(ReplayConfig):
    """Keys of every Dreamer."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}
    obeys_masks_with: ClassVar[str] = f"algo.actor.cls={MASKED}"
    registers: ClassVar[Mapping[str, str]] = WORLD_PARTS
    side: ClassVar[int | None] = 64  # pixels of the images that its convolutions take; None: any power of two
    continuous: ClassVar[tuple[str, ...]] = ("trunc_normal", "tanh_normal", "normal")  # distributions; the first, auto

    lmbda: float = arg(0.95, "λ of the λ-return", low=0, high=1)
    horizon: int = arg(15, "H: imagined steps", low=1)
    normalize_actions: bool = arg(True, "actions of -1 to 1 are stretched onto the bounds of a Box; false: clipped")
    per_rank_batch_size: int = arg(16, "N: sequences of one gradient step", low=1)
    per_rank_sequence_length: int = arg(50, "L: rows of a sequence", low=2)
    learning_starts: int = other_default(ReplayConfig, "learning_starts", 1000)
    mlp_keys: DecodedKeysConfig = arg(DecodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: DecodedKeysConfig = arg(DecodedKeysConfig(), "image observation keys")
    dense_units: int = arg(400, "units of hidden layers, for the parts that do not say", low=1)
    mlp_layers: int = arg(4, "hidden layers, likewise", low=0)
    dense_act: str = arg("elu", "activation, likewise", choices=tuple(ACTIVATIONS))
    cnn_act: str = arg("elu", "activation of convolutions, likewise", choices=tuple(ACTIVATIONS))

    def check(self, prefix: str) -> None:
        """Refuse a model that reconstructs nothing; `prefix` is the place of this group, for messages."""
        super().check(prefix)
        seen = self.mlp_keys.encoder + self.cnn_keys.encoder
        if seen and not self.mlp_keys.decoded + self.cnn_keys.decoded:
            raise UserError(
                f"{prefix}mlp_keys.decoder=[]: the model learns from what it reconstructs; "
                f"name at least one of {', '.join(seen)}"
            )

    def check_with(self, run: RunConfig) -> None:
        """Refuse a memory that holds no sequence of each environment."""
        rows, length = self.rows(run.buffer.size, run.width), self.per_rank_sequence_length
        if rows <= length:
            raise UserError(
                f"algo.per_rank_sequence_length={length}: longer than the {rows} rows that buffer.size="
                f"{spell(run.buffer.size)} leaves each of {run.width} environments; must be below {rows}, or "
                f"buffer.size at least {run.width * (length + 1)}"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse observation keys that the environment does not have, and images that stages do not take."""
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, SMALLEST)
        actor: Any = getattr(self, "actor", None)  # of each Dreamer its own
        if actor is not None and actor.cls == MASKED and not spec.mask_keys:
            choices = f"for {sum(spec.action.nvec)} choices" if spec.action.nvec else "of a continuous action"
            raise UserError(
                f"algo.actor.cls={MASKED}: {spec.id} gives no masks {choices} (keys action_mask… or mask…, an entry a "
                "choice); set it to actor"
            )
        for key in self.cnn_keys.encoder:
            height, width = spec.obs[key].pixels
            fits = height == self.side if self.side else math.log2(height).is_integer()
            if height != width or not fits:
                takes = (
                    f"are of {self.side} × {self.side}" if self.side else "halve a square whose side is a power of two"
                )
                raise UserError(
                    f"algo.cnn_keys.encoder: {key} has {height} × {width} pixels, and stages of convolutions {takes}; "
                    "set env.screen_size to 64"
                )

    def policy_kind(self, action: ActionSpec, distribution: str) -> str:
        """The distribution that an action space gets under `distribution.type`; a UserError where it cannot have it."""
        fitting = self.continuous if action.continuous else ("discrete",)
        kind = fitting[0] if distribution == "auto" else distribution
        if kind not in fitting:
            allowed = ", ".join(("auto", *fitting))
            raise UserError(f"distribution.type={kind}: a {action.space} action takes one of {allowed}")
        return kind

    @property
    def obeys_masks(self) -> bool:
        """True if the actor is the one that masks are for."""
        actor: Any = getattr(self, "actor", None)
        return actor is not None and actor.cls == MASKED

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Say what is not stacked, and when learning begins later than its key says."""
        if run.env.frame_stack > 1:
            yield f"env.frame_stack={run.env.frame_stack}: {self.name} sees the newest frame; its state remembers"
        rows, width, buffer = self.per_rank_sequence_length, run.width, run.buffer
        if buffer.online and self.replay_ratio * self.per_rank_batch_size * rows < 1:
            yield (
                f"buffer.online=true: {rows} rows bring a new sequence, and algo.replay_ratio={self.replay_ratio:g} "
                "learns from fewer than one in that time: of those that wait the memory forgets the oldest"
            )
        if rows * width > max(self.random_steps(width), width):
            yield (
                f"algo.learning_starts={self.learning_starts}: learning starts after {rows * width} policy steps, when "
                f"each of {width} environments has a sequence (algo.per_rank_sequence_length={rows})"
            )
