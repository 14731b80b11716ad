"""Keys that off-policy actor-critics share: the memory and how often it is learned from, networks with optimizers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.config.algorithm import VECTORS, AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import SMALLEST, KeysConfig, NetworkConfig, check_keys
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

ROWS = 1_000_000  # of all environments together, where `buffer.size` does not say


@dataclass(frozen=True, kw_only=True)
class TrainedConfig(NetworkConfig):
    """A network and its optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "its own")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Keys of every algorithm that learns from a memory."""

    gamma: float = arg(0.99, "discount of one step", low=0, high=1)
    per_rank_batch_size: int = arg(256, "N: transitions of one gradient step", low=1)
    replay_ratio: float = arg(1.0, "gradient steps of each rank for every policy step of its own", above=0)
    train_every: int | None = arg(
        None, "policy steps between trainings, each of all gradient steps that are due; null = every row", low=1
    )
    learning_starts: int = arg(100, "policy steps at random before the first gradient step", low=0)
    per_rank_pretrain_steps: int = arg(0, "gradient steps more when learning starts", low=0)

    def check(self, prefix: str) -> None:
        """Refuse a budget that ends before anything is learned; `prefix` is the place of this group, for messages."""
        super().check(prefix)
        if self.learning_starts >= self.total_steps:
            raise UserError(
                f"{prefix}learning_starts={self.learning_starts}: nothing would be learned; "
                f"must be below {prefix}total_steps ({self.total_steps})"
            )

    def rows(self, size: int | None, width: int) -> int:
        """Rows of each environment that are remembered; `buffer.size` is of all together, as SheepRL counts."""
        return (size or ROWS) // width

    def count_remembered(self, run: RunConfig) -> int:
        """Rows that are remembered, of all environments together."""
        return self.rows(run.buffer.size, run.width) * run.width

    def random_steps(self, width: int) -> int:
        """Policy steps of the iterations whose actions are random: `learning_starts` in whole ones."""
        return self.learning_starts // width * width

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """`train_every`: what is still owed at the end of the budget is done there."""
        return ("train_every",) if self.train_every is not None else ()

    def quiet_steps(self, width: int, rows: int = 0) -> int:
        """Policy steps that no gradient step is owed for: all before the last random iteration.

        Where a gradient step takes so many `rows` of an environment, all before there are as many.
        """
        return max(0, max(self.random_steps(width), rows * width) - width)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """Keys of every off-policy actor-critic."""

    smallest: ClassVar[int] = SMALLEST  # pixels a side of an image that its convolutions need

    tau: float = arg(0.005, "τ: share of the way that target critics move", above=0, high=1)
    hidden_size: int = arg(256, "units of hidden layers, for the parts that do not say", low=1)
    n_step: int = arg(1, "n: rewards of a target before the critic's own estimate", low=1)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    cnn_keys: KeysConfig = arg(KeysConfig(), "image observation keys")

    def check_with(self, run: RunConfig) -> None:
        """Refuse a memory that holds no batch, or is drawn from by episodes."""
        if run.buffer.type != "sequential":
            raise UserError(
                f"buffer.type={run.buffer.type}: {self.name} learns from single transitions; set it to sequential"
            )
        if self.rows(run.buffer.size, run.width) <= self.n_step:
            key = f"buffer.size={spell(run.buffer.size)}"
            raise UserError(f"{key}: of {run.width} environments; at least {run.width * (self.n_step + 1)} rows")
        held = self.rows(run.buffer.size, run.width) * run.env.num_envs
        if held < self.per_rank_batch_size:
            raise UserError(
                f"buffer.size={spell(run.buffer.size)}: the {held} rows of a rank are fewer than one batch; must be at "
                f"least algo.per_rank_batch_size ({self.per_rank_batch_size}) for each rank"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse observation keys that the environment does not have."""
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, self.smallest)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig:
    """The temperature α, the weight of the entropy."""

    alpha: float = arg(1.0, "first value", above=0)
    target_entropy: float | None = arg(None, "H̄: entropy that α is tuned to, nats; null = -A, one less a dimension")
    target_entropy_scale: float = arg(1.0, "factor of that default", above=0)
    fixed: bool = arg(False, "α stays what it is")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "of log α")


@dataclass(frozen=True, kw_only=True)
class SoftConfig(OffPolicyConfig):
    """Keys of every soft actor-critic: bounded continuous actions by a squashed normal, and a temperature."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}

    alpha: AlphaConfig = arg(AlphaConfig(), "weight of the entropy")

    def check_with(self, run: RunConfig) -> None:
        """Refuse another distribution, and a memory that holds no batch."""
        if run.distribution.type not in ("auto", "tanh_normal"):
            kind = run.distribution.type
            raise UserError(f"distribution.type={kind}: {self.name} has a squashed normal; set it to auto")
        super().check_with(run)

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse actions that are not continuous and bounded, and observation keys that are not there."""
        if not spec.action.continuous:
            found = f"this one has {spec.action.space}; `shepherd agents` lists what takes that"
            raise UserError(f"env.id={spec.id}: {self.name} takes continuous actions, and {found}")
        if not all(map(math.isfinite, (*spec.action.low, *spec.action.high))):
            raise UserError(f"env.id={spec.id}: {self.name} takes actions bounded on both sides, and these are not")
        super().check_spec(spec)

    def target_entropy(self, size: int) -> float:
        """H̄ of actions of so many dimensions, nats."""
        given = self.alpha.target_entropy
        return -self.alpha.target_entropy_scale * size if given is None else given
