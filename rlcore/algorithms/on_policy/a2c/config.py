"""Config keys of A2C."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.on_policy.config import OnPolicyConfig
from rlcore.config.schema import arg
from rlcore.optim.optimizer_keys import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Config keys of A2C: those of `OnPolicyConfig`, some with other defaults, and `per_rank_batch_size`."""

    name: str = arg("a2c", "name of the algorithm", choices=("a2c",))
    rollout_steps: int = arg(5, "steps of each environment in a rollout", low=1)
    gae_method: str = arg(
        "auto",
        "computation of advantages: loop (sequential), log_scan (parallel), or auto (loop if rollout_steps <= 16, "
        "otherwise log_scan)",
        choices=("loop", "log_scan", "auto"),
    )
    loss_reduction: str = arg("sum", "reduction over the samples of a rollout", choices=("mean", "sum"))
    per_rank_batch_size: int | None = arg(
        None, "samples in one backward pass; affects memory, not the gradient step; null = the whole rollout", low=1
    )
    optimizer: OptimizerConfig = arg(
        OptimizerConfig(name="rmsprop", lr=1e-3, eps=1e-4, betas=None), "optimizer of actor and critic"
    )
