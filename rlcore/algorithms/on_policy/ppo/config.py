"""Config keys of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlcore.algorithms.on_policy.config import OnPolicyConfig, Schedule
from rlcore.config.schema import arg

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Config keys of PPO."""

    name: str = arg("ppo", "name of the algorithm", choices=("ppo",))
    per_rank_batch_size: int = arg(64, "samples in a minibatch", low=1)
    update_epochs: int = arg(10, "epochs: passes over a rollout in an update", low=1)
    accumulate_minibatches: int = arg(1, "minibatches whose gradients are summed in one optimizer step", low=1)
    clip_coef: float = arg(0.2, "clip range ε of the surrogate objective", above=0)
    anneal_clip_coef: bool = arg(False, "decrease clip_coef linearly to 0 at total_steps")
    clip_coef_schedule: Schedule = arg(None, "clip range schedule [[policy steps, clip_coef], ...]; null = constant")
    clip_vloss: bool = arg(False, "clip the value loss; clip_coef is the clip range")
    dual_clip: float | None = arg(
        None,
        "constant c of dual-clip PPO, which bounds the loss of actions with a negative advantage; null = off",
        above=1,
    )
    target_kl: float | None = arg(
        None, "stop an update if the KL divergence exceeds 1.5 times this value; null = off", above=0
    )

    def notices(self, run: RunConfig) -> Iterator[str]:
        """Yield a message if `per_rank_batch_size` is larger than a rollout and is therefore reduced."""
        rows, size = run.env.num_envs * self.rollout_steps, self.per_rank_batch_size
        if size > rows:
            yield (
                f"algo.per_rank_batch_size={size}: reduced to {rows}, the number of time steps in one rollout "
                f"(env.num_envs={run.env.num_envs} × algo.rollout_steps={self.rollout_steps})"
            )

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that the learner reports, including the change of the policy."""
        return super().metric_names() | {"Info/approx_kl", "Info/clip_fraction"}

    def merge_minibatches(self) -> Config:
        """Return a copy of the config with one minibatch per epoch, which contains the complete rollout.

        The copy has a very large `per_rank_batch_size`; the learner limits a minibatch to the size of the rollout.
        """
        return replace(self, per_rank_batch_size=1 << 30)
