"""Config keys of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlcore.algorithms.on_policy.config import OnPolicyConfig, Schedule
from rlcore.config.schema import Needs, arg

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Config keys of PPO."""

    name: str = arg("ppo", "name of the algorithm", choices=("ppo",))
    per_rank_batch_size: int | None = arg(64, "samples in a minibatch; null = all samples of a rollout", low=1)
    shuffle: bool = arg(
        True, "assign samples to minibatches in random order; false = in order of environments and time steps"
    )
    update_epochs: int = arg(10, "epochs: passes over a rollout in an update", low=1)
    accumulate_minibatches: int | None = arg(
        1, "minibatches whose gradients are summed in one optimizer step; null = all minibatches of an epoch", low=1
    )
    advantage_scope: str = arg(
        "minibatch",
        "samples over which advantages are standardized: those of a minibatch, or all samples of a rollout",
        choices=("minibatch", "rollout"),
        needs=Needs("normalize_advantages", bool, "=true"),
    )
    clip_coef: float = arg(0.2, "clip range ε of the surrogate objective", above=0)
    anneal_clip_coef: bool = arg(False, "decrease clip_coef linearly to 0 at total_steps")
    clip_coef_schedule: Schedule = arg(None, "clip range schedule [[policy steps, clip_coef], ...]; null = constant")
    clip_vloss: bool = arg(False, "clip the value loss; vf_clip_coef is the clip range")
    vf_clip_coef: float | None = arg(
        None,
        "clip range of the value loss, in the unit of returns; null = clip_coef",
        above=0,
        needs=Needs("clip_vloss", bool, "=true"),
    )
    value_loss: str = arg(
        "mse",
        "value loss: mse (squared error d²), or smooth_l1 (½ d² if |d| < 1, otherwise |d| - ½)",
        choices=("mse", "smooth_l1"),
    )
    value_loss_cap: float | None = arg(
        None, "maximum value loss of a sample; samples above it have no gradient; null = no maximum", above=0
    )
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
        if size is not None and size > rows:
            yield (
                f"algo.per_rank_batch_size={size}: reduced to {rows}, the number of time steps in one rollout "
                f"(env.num_envs={run.env.num_envs} × algo.rollout_steps={self.rollout_steps})"
            )

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that the learner reports, including the change of the policy."""
        return super().metric_names() | {"Info/approx_kl", "Info/clip_fraction"}

    def merge_minibatches(self) -> Config:
        """Return a copy of the config with one minibatch per epoch, which contains the complete rollout."""
        return replace(self, per_rank_batch_size=None)
