"""Config keys of SAC, and checks that SAC-AE shares. DroQ, CrossQ and SimBa have SAC's keys with other defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlcore.algorithms.off_policy import ReplayConfig
from rlcore.config.run import VECTORS
from rlcore.config.schema import Needs, arg
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.nn.network_keys import SMALLEST, EncodedKeysConfig, FlatEncoderConfig, NetworkConfig, check_keys
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig
    from rlcore.spec import EnvSpec


# Metrics of the learners of SAC and SAC-AE.
METRICS = frozenset({f"Loss/{name}_loss" for name in ("value", "policy", "alpha")}) | {
    f"Info/{name}" for name in ("q", "entropy", "alpha", "critic_grad_norm", "actor_grad_norm")
}
KINDS = VECTORS | {"image"}  # kinds of observation keys that SAC and SAC-AE read


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

    def target(self, size: int) -> float:
        """Return the target entropy in nats for actions with `size` dimensions."""
        given = self.target_entropy
        return -self.target_entropy_scale * size if given is None else given


@dataclass(frozen=True, kw_only=True)
class SquashedActorConfig(NetworkConfig):
    """Config keys of the actor network and its optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "optimizer of this network")
    log_std_min: float = arg(-5.0, "lowest log std of the normal distribution before the tanh", low=-20, high=2)
    q: str = arg("min", "Q in the policy loss: minimum or mean of the critics", choices=("min", "mean"))


@dataclass(frozen=True, kw_only=True)
class CriticConfig(NetworkConfig):
    """Config keys of the critic networks and their optimizer."""

    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=3e-4), "optimizer of this network")
    n: int = arg(2, "number of critics; targets use their minimum", low=1)
    target: str = arg(
        "ema",
        "target critics: ema (moving average of the critics) or none (use the critics themselves)",
        choices=("ema", "none"),
    )
    target_network_frequency: int = arg(
        1,
        "gradient steps between updates of the target critics",
        low=1,
        needs=Needs("target", lambda target: target == "ema", "=ema"),
    )
    loss: str = arg(
        "mse",
        "critic loss: mse (½ (Q - y)²) or categorical (cross-entropy of a distribution over bins)",
        choices=("mse", "categorical"),
    )
    bins: int = arg(
        101,
        "bins of a categorical critic, from symexp(-20) to symexp(20)",
        low=2,
        needs=Needs("loss", lambda loss: loss == "categorical", "=categorical"),
    )

    @property
    def outputs(self) -> int:
        """Number K of outputs of a critic: the number of bins of a categorical critic, otherwise 1."""
        return self.bins if self.loss == "categorical" else 1


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Config keys of SAC."""

    kinds: ClassVar[frozenset[str]] = KINDS

    name: str = arg("sac", "name of the algorithm", choices=("sac",))
    tau: float = arg(0.005, "τ of the soft update of target critics", above=0, high=1)
    hidden_size: int = arg(256, "default number of units in each hidden layer", low=1)
    n_step: int = arg(1, "rewards summed in a target before bootstrapping (n-step return)", low=1)
    mlp_keys: EncodedKeysConfig = arg(EncodedKeysConfig(("state",)), "vector observation keys")
    cnn_keys: EncodedKeysConfig = arg(EncodedKeysConfig(), "image observation keys")
    alpha: AlphaConfig = arg(AlphaConfig(), "temperature, the weight of the entropy")
    policy_delay: int | None = arg(
        1,
        "critic gradient steps per policy gradient step; null = replay_ratio × number of environments of a rank",
        low=1,
    )
    normalize_obs: bool = arg(False, "normalize observations by the running mean and std of sampled batches")
    obs_clip: float = arg(
        10.0,
        "clip normalized observations to this absolute value",
        above=0,
        needs=Needs("normalize_obs", bool, "=true"),
    )
    encoder: FlatEncoderConfig = arg(
        FlatEncoderConfig(), "observation encoder; the actor has one, the critics share another"
    )
    actor: SquashedActorConfig = arg(SquashedActorConfig(), "actor network")
    critic: CriticConfig = arg(CriticConfig(), "critic networks")

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that learner and replay buffer report."""
        return super().metric_names() | METRICS

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if the policy distribution is not a squashed normal, or the replay buffer is unsuitable."""
        check_run(self, self.n_step, run)

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if actions are not continuous and bounded, or if an observation key cannot be read."""
        check_actions(self.name, spec)
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, SMALLEST)

    def delay(self, num_envs: int) -> int:
        """Return the number of critic gradient steps per policy gradient step.

        `num_envs` is the number of environments of one rank; it is used if `policy_delay` is null.
        """
        return self.policy_delay or math.ceil(self.replay_ratio * num_envs)


def check_run(config: ReplayConfig, n_step: int, run: RunConfig) -> None:
    """Raise UserError if the policy distribution is not a squashed normal, or the replay buffer is unsuitable.

    The buffer must sample single transitions (`buffer.type=sequential`), not episodes. On each rank, its capacity must
    be at least one batch, and at least `n_step` + 1 rows of each environment.
    """
    if run.distribution.type not in ("auto", "tanh_normal"):
        kind = run.distribution.type
        raise UserError(
            f"distribution.type={kind}: not available for {config.name}, which has a squashed normal policy; "
            "set it to auto"
        )
    if run.buffer.type != "sequential":
        raise UserError(
            f"buffer.type={run.buffer.type}: not available for {config.name}, which learns from single transitions; "
            "set it to sequential"
        )
    rows = config.rows(run.buffer.size, run.width)
    if rows <= n_step:
        key = f"buffer.size={spell(run.buffer.size)}"
        raise UserError(
            f"{key}: too small for transitions of algo.n_step={n_step} steps in {run.width} environments; "
            f"must be at least {run.width * (n_step + 1)} rows"
        )
    held = rows * run.env.num_envs
    if held < config.per_rank_batch_size:
        raise UserError(
            f"buffer.size={spell(run.buffer.size)}: each rank can store only {held} rows, which is less than one "
            f"batch (algo.per_rank_batch_size={config.per_rank_batch_size}); increase buffer.size, or reduce "
            "algo.per_rank_batch_size"
        )


def check_actions(name: str, spec: EnvSpec) -> None:
    """Raise UserError if the actions of the environment are not continuous and bounded.

    `name` is the name of the algorithm, for the message.
    """
    if not spec.action.continuous:
        other = f"`shepherd agents` lists the algorithms for {spec.action.space} actions"
        raise UserError(
            f"env.id={spec.id}: {name} needs continuous (Box) actions, but this environment has "
            f"{spec.action.space} actions; {other}"
        )
    if not all(map(math.isfinite, (*spec.action.low, *spec.action.high))):
        raise UserError(
            f"env.id={spec.id}: {name} needs actions with finite lower and upper bounds, but this environment "
            "has an action with an infinite bound; choose another environment or algorithm"
        )
