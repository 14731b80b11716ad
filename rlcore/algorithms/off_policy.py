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
    """Config keys of a network and its optimizer."""

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
        """Raise UserError if training would end before the first gradient step.

        `prefix` is the dotted path of this config group, such as "algo."; error messages start with it.
        """
        super().check(prefix)
        if self.learning_starts >= self.total_steps:
            raise UserError(
                f"{prefix}learning_starts={self.learning_starts}: nothing would be learned, because training ends "
                f"before the first gradient step; must be below {prefix}total_steps ({self.total_steps})"
            )

    def rows(self, size: int | None, width: int) -> int:
        """Return the capacity of the replay buffer for one environment.

        Args:
            size: capacity for all environments together, in rows (time steps): the config key `buffer.size`. None =
                1,000,000 rows.
            width: number of environments of all ranks.

        Returns:
            Capacity in rows (time steps) of one environment.
        """
        return (size or ROWS) // width

    def count_remembered(self, run: RunConfig) -> int:
        """Return the capacity of the replay buffer in rows (time steps), over all environments of all ranks."""
        return self.rows(run.buffer.size, run.width) * run.width

    def random_steps(self, width: int) -> int:
        """Return the number of policy steps at the start of training whose actions are random.

        `width` is the number of environments of all ranks. One iteration takes `width` policy steps, one in each
        environment. The result is `learning_starts`, rounded down to a multiple of `width`.
        """
        return self.learning_starts // width * width

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """Config keys that make the results of training depend on `total_steps`.

        `train_every` is such a key: the gradient steps since the last full interval of `train_every` policy steps are
        taken in an additional update at the end of training.
        """
        return ("train_every",) if self.train_every is not None else ()

    def learning_starts_steps(self, width: int, rows: int = 0) -> int:
        """Return the number of policy steps at the start of training for which no gradient steps are due.

        One iteration takes one policy step in each environment, followed by the gradient steps that are due. Gradient
        steps start in the last iteration with random actions. If some environment has not stored the required number of
        rows by then, they start in the iteration in which it has.

        Args:
            width: number of environments of all ranks.
            rows: required number of rows (time steps) of each environment.

        Returns:
            Number of policy steps, over all environments, before the first iteration with gradient steps.
        """
        return max(0, max(self.random_steps(width), rows * width) - width)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """Config keys of every off-policy actor-critic."""

    smallest: ClassVar[int] = SMALLEST  # smallest image side in pixels that the convolutions accept

    tau: float = arg(0.005, "τ of the soft update of target critics", above=0, high=1)
    hidden_size: int = arg(256, "default number of units in each hidden layer", low=1)
    n_step: int = arg(1, "rewards summed in a target before bootstrapping (n-step return)", low=1)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    cnn_keys: KeysConfig = arg(KeysConfig(), "image observation keys")

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError for an unsuitable replay buffer.

        The buffer must sample single transitions (`buffer.type=sequential`), not episodes. On each rank, its capacity
        must be at least one batch, and at least `n_step` + 1 rows of each environment.
        """
        if run.buffer.type != "sequential":
            raise UserError(
                f"buffer.type={run.buffer.type}: not available for {self.name}, which learns from single transitions; "
                "set it to sequential"
            )
        if self.rows(run.buffer.size, run.width) <= self.n_step:
            key = f"buffer.size={spell(run.buffer.size)}"
            raise UserError(
                f"{key}: too small for transitions of algo.n_step={self.n_step} steps in {run.width} environments; "
                f"must be at least {run.width * (self.n_step + 1)} rows"
            )
        held = self.rows(run.buffer.size, run.width) * run.env.num_envs
        if held < self.per_rank_batch_size:
            raise UserError(
                f"buffer.size={spell(run.buffer.size)}: each rank can store only {held} rows, which is less than one "
                f"batch (algo.per_rank_batch_size={self.per_rank_batch_size}); increase buffer.size, or reduce "
                "algo.per_rank_batch_size"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if the algorithm cannot read the observation keys that the config names.

        For example, the environment may lack a key, or its images may be too small.
        """
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, self.smallest)


@dataclass(frozen=True, kw_only=True)
class AlphaConfig:
    """Config keys of the temperature α, which is the weight of the entropy in the objective."""

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
    """Config keys of soft actor-critics such as SAC.

    A soft actor-critic has a tanh-squashed normal policy over bounded actions, and a temperature.
    """

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}

    alpha: AlphaConfig = arg(AlphaConfig(), "temperature, the weight of the entropy")

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the policy distribution is not a squashed normal, or the replay buffer is unsuitable."""
        if run.distribution.type not in ("auto", "tanh_normal"):
            kind = run.distribution.type
            raise UserError(
                f"distribution.type={kind}: not available for {self.name}, which has a squashed normal policy; "
                "set it to auto"
            )
        super().check_with(run)

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if the algorithm cannot be trained in an environment.

        The actions of the environment must be continuous and bounded, and the algorithm must be able to read the
        observation keys that the config names.
        """
        if not spec.action.continuous:
            other = f"`shepherd agents` lists the algorithms for {spec.action.space} actions"
            raise UserError(
                f"env.id={spec.id}: {self.name} needs continuous (Box) actions, but this environment has "
                f"{spec.action.space} actions; {other}"
            )
        if not all(map(math.isfinite, (*spec.action.low, *spec.action.high))):
            raise UserError(
                f"env.id={spec.id}: {self.name} needs actions with finite lower and upper bounds, but this environment "
                "has an action with an infinite bound; choose another environment or algorithm"
            )
        super().check_spec(spec)

    def target_entropy(self, size: int) -> float:
        """Return the target entropy in nats for actions with `size` dimensions."""
        given = self.alpha.target_entropy
        return -self.alpha.target_entropy_scale * size if given is None else given
