"""Config keys of off-policy algorithms: replay buffer, replay ratio, and networks with their optimizers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.config.algorithm import VECTORS, AlgorithmConfig
from rlcore.config.schema import Needs, arg
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import SMALLEST, KeysConfig, NetworkConfig, check_keys
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

ROWS = 1_000_000  # default of `buffer.size`, over all environments


@dataclass(frozen=True, kw_only=True)
class TrainedConfig(NetworkConfig):
    """A network and its optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "optimizer of this network")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Config keys of every algorithm with a replay buffer."""

    gamma: float = arg(0.99, "discount of one step", low=0, high=1)
    per_rank_batch_size: int = arg(256, "transitions in the batch of a gradient step", low=1)
    replay_ratio: float = arg(1.0, "gradient steps per policy step", above=0)
    train_every: int | None = arg(
        None,
        "policy steps between updates; an update takes all gradient steps that replay_ratio requires by then; "
        "null = update after every step of all environments",
        low=1,
    )
    learning_starts: int = arg(100, "policy steps with random actions before the first gradient step", low=0)
    per_rank_pretrain_steps: int = arg(0, "additional gradient steps at the first update", low=0)

    def check(self, prefix: str) -> None:
        """Raise UserError if training ends before learning starts; `prefix` is the dotted path of this group."""
        super().check(prefix)
        if self.learning_starts >= self.total_steps:
            raise UserError(
                f"{prefix}learning_starts={self.learning_starts}: nothing would be learned before training ends; "
                f"must be below {prefix}total_steps ({self.total_steps})"
            )

    def rows(self, size: int | None, width: int) -> int:
        """Return how many rows (time steps) of each environment the replay buffer can store.

        `size` is `buffer.size`, which counts the rows of all `width` environments, as in SheepRL.
        """
        return (size or ROWS) // width

    def count_remembered(self, run: RunConfig) -> int:
        """Return how many rows (time steps) of all environments together the replay buffer can store."""
        return self.rows(run.buffer.size, run.width) * run.width

    def random_steps(self, width: int) -> int:
        """Return the number of policy steps with random actions: `learning_starts`, rounded down to whole iterations.

        One iteration takes `width` policy steps, one in each environment.
        """
        return self.learning_starts // width * width

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """Keys that make results depend on `total_steps`: with `train_every`, an additional update ends training."""
        return ("train_every",) if self.train_every is not None else ()

    def learning_starts_steps(self, width: int, rows: int = 0) -> int:
        """Return the number of policy steps at the start of training for which no gradient steps are taken.

        Gradient steps are counted from the last iteration with random actions, or, if that is later, from the iteration
        in which every environment has stored `rows` rows.
        """
        return max(0, max(self.random_steps(width), rows * width) - width)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """Config keys of every off-policy actor-critic."""

    smallest: ClassVar[int] = SMALLEST  # smallest image side in pixels that the convolutions accept

    tau: float = arg(0.005, "τ of the soft update of target critics", above=0, high=1)
    hidden_size: int = arg(256, "default units of hidden layers", low=1)
    n_step: int = arg(1, "rewards summed in a target before bootstrapping (n-step return)", low=1)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    cnn_keys: KeysConfig = arg(KeysConfig(), "image observation keys")

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the replay buffer is smaller than a batch, or if it samples episodes."""
        if run.buffer.type != "sequential":
            raise UserError(
                f"buffer.type={run.buffer.type}: not available for {self.name}, which learns from single transitions; "
                "set it to sequential"
            )
        if self.rows(run.buffer.size, run.width) <= self.n_step:
            key = f"buffer.size={spell(run.buffer.size)}"
            raise UserError(
                f"{key}: too small for transitions of {self.n_step} steps in {run.width} environments; must be at "
                f"least {run.width * (self.n_step + 1)} rows"
            )
        held = self.rows(run.buffer.size, run.width) * run.env.num_envs
        if held < self.per_rank_batch_size:
            raise UserError(
                f"buffer.size={spell(run.buffer.size)}: the {held} rows that each rank stores are fewer than one "
                f"batch; each rank must store at least algo.per_rank_batch_size ({self.per_rank_batch_size}) rows"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if the environment does not have an observation key of the config."""
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, self.smallest)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig:
    """Temperature α, the weight of the entropy."""

    alpha: float = arg(1.0, "initial temperature α", above=0)
    target_entropy: float | None = arg(
        None,
        "target entropy in nats; null = minus the number of action dimensions",
        needs=Needs("fixed", lambda fixed: not fixed, "=false"),
    )
    target_entropy_scale: float = arg(
        1.0,
        "factor of the default target entropy",
        above=0,
        needs=Needs("target_entropy", lambda given: given is None, "=null"),
    )
    fixed: bool = arg(False, "keep the temperature α constant")
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "optimizer of log α")


@dataclass(frozen=True, kw_only=True)
class SoftConfig(OffPolicyConfig):
    """Config keys of soft actor-critics; they have a squashed normal policy over bounded actions, and a temperature."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}

    alpha: AlphaConfig = arg(AlphaConfig(), "temperature, the weight of the entropy")

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the distribution is not a squashed normal, or the replay buffer is too small."""
        if run.distribution.type not in ("auto", "tanh_normal"):
            kind = run.distribution.type
            raise UserError(
                f"distribution.type={kind}: not available for {self.name}, which has a squashed normal policy; "
                "set it to auto"
            )
        super().check_with(run)

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError for actions that are not continuous and bounded, or for unknown observation keys."""
        if not spec.action.continuous:
            other = f"`shepherd agents` lists the algorithms for {spec.action.space} actions"
            raise UserError(
                f"env.id={spec.id}: {self.name} takes continuous actions, but this environment has "
                f"{spec.action.space} actions; {other}"
            )
        if not all(map(math.isfinite, (*spec.action.low, *spec.action.high))):
            raise UserError(
                f"env.id={spec.id}: {self.name} takes only actions with a finite lower and upper bound, and this "
                "environment has others; choose another environment or algorithm"
            )
        super().check_spec(spec)

    def target_entropy(self, size: int) -> float:
        """Return the target entropy in nats for actions with `size` dimensions."""
        given = self.alpha.target_entropy
        return -self.alpha.target_entropy_scale * size if given is None else given
