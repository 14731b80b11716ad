"""Config keys of off-policy algorithms: replay buffer, replay ratio, and random steps at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlcore.config.run import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.errors import UserError

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig

ROWS = 1_000_000  # default of `buffer.size`, over all environments


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
        if self.learning_starts >= self.step_limit:
            raise UserError(
                f"{prefix}learning_starts={self.learning_starts}: nothing would be learned, because training ends "
                f"before the first gradient step; must be below {prefix}total_steps ({self.total_steps})"
            )

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that the replay buffer and the schedule report."""
        return frozenset({"Params/replay_ratio", "Params/random_actions"})

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

        `width` is the number of environments of all ranks. In a run that starts from the networks of another run, no
        action is random, because the actors of that run act from the first step.
        """
        return 0 if self.fine_tunes else self.first_steps(width)

    def first_steps(self, width: int) -> int:
        """Return `learning_starts`, rounded down to a multiple of `width`.

        `width` is the number of environments of all ranks. One iteration takes `width` policy steps, one in each
        environment.
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
        steps start in the last iteration of the first `learning_starts` policy steps. If some environment has not
        stored the required number of rows by then, they start in the iteration in which it has.

        Args:
            width: number of environments of all ranks.
            rows: required number of rows (time steps) of each environment.

        Returns:
            Number of policy steps, over all environments, before the first iteration with gradient steps.
        """
        return max(0, max(self.first_steps(width), rows * width) - width)
