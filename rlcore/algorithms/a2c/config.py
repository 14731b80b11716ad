"""The keys of A2C."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore.algorithms.on_policy import OnPolicyConfig
from rlcore.config.schema import arg
from rlcore.optim.optimizer_keys import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Keys that A2C adds, and its own defaults."""

    name: str = arg("a2c", "the algorithm", choices=("a2c",))
    rollout_steps: int = arg(5, "T: rows of every environment between updates", low=1)
    gae_method: str = arg(
        "auto",
        "backwards step by step, in log2(T) rounds, or auto: by the loop where T is at most 16",
        choices=("loop", "log_scan", "auto"),
    )
    loss_reduction: str = arg("sum", "over the samples of a rollout", choices=("mean", "sum"))
    per_rank_batch_size: int | None = arg(
        None, "samples whose gradient is computed at once; changes memory, not the step; null = the rollout", low=1
    )
    optimizer: OptimizerConfig = arg(
        OptimizerConfig(name="rmsprop", lr=1e-3, eps=1e-4, betas=None), "one for actor and critic"
    )
