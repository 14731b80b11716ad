"""Keys that on-policy actor-critics share: the rollout, the networks, the optimizer and its schedules."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from rlcore.config.algorithm import VECTORS, AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.errors import UserError
from rlcore.functional.schedules import Points, anneal, check_points, piecewise
from rlcore.nn.network_keys import ACTIVATIONS, ActorConfig, EncoderConfig, KeysConfig, MLPConfig, check_keys
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec

Schedule = tuple[tuple[float, float], ...] | None


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """Keys of every on-policy algorithm."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}

    rollout_steps: int = arg(128, "T: rows of every environment between updates", low=1)
    gamma: float = arg(0.99, "discount of one step", above=0, high=1)
    gae_lambda: float = arg(0.95, "λ of the advantage estimator", low=0, high=1)
    gae_method: str = arg(
        "loop",
        "backwards step by step, in log2(T) rounds, or auto: by the loop where T is at most 16",
        choices=("loop", "log_scan", "auto"),
    )
    loss_reduction: str = arg("mean", "over the samples of an optimizer step", choices=("mean", "sum"))
    normalize_advantages: bool = arg(False, "advantages of a minibatch to mean 0, std 1")
    vf_coef: float = arg(1.0, "weight of the value loss (no ½ in it)", low=0)
    ent_coef: float = arg(0.0, "weight of the entropy bonus", low=0)
    anneal_lr: bool = arg(False, "learning rate linearly to 0 at total_steps")
    anneal_ent_coef: bool = arg(False, "ent_coef linearly to 0 at total_steps")
    lr_schedule: Schedule = arg(None, "[[policy steps, lr], ...] instead of a constant")
    ent_coef_schedule: Schedule = arg(None, "[[policy steps, ent_coef], ...] instead of a constant")
    schedule_kind: str = arg("linear", "between the points of a schedule", choices=("linear", "step"))
    max_grad_norm: float = arg(0.0, "clip the gradient's global norm here; 0 = never", low=0)
    normalize_obs: bool = arg(False, "observations by their running mean and std")
    normalize_reward: bool = arg(False, "rewards by the running std of the discounted return")
    obs_clip: float = arg(10.0, "largest normalised observation", above=0)
    reward_clip: float = arg(10.0, "largest normalised reward", above=0)
    dense_units: int = arg(64, "units of hidden layers, for the parts that do not say", low=1)
    mlp_layers: int = arg(2, "hidden layers, likewise", low=0)
    dense_act: str = arg("tanh", "activation, likewise", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm, likewise")
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    cnn_keys: KeysConfig = arg(KeysConfig(), "image observation keys")
    encoder: EncoderConfig = arg(EncoderConfig(), "shared by actor and critic")
    actor: ActorConfig = arg(ActorConfig(), "after the encoder")
    critic: MLPConfig = arg(MLPConfig(), "after the encoder")
    optimizer: OptimizerConfig = arg(OptimizerConfig(), "one for actor and critic")

    def check(self, prefix: str) -> None:
        """Refuse schedules that contradict each other; `prefix` is the dotted place of this group, for messages."""
        super().check(prefix)
        for name in self.schedulable():
            points = getattr(self, f"{name}_schedule")
            if points is None:
                continue
            if getattr(self, f"anneal_{name}"):
                raise UserError(f"{prefix}{name}_schedule goes with {prefix}anneal_{name}=false only; add that")
            wrong = check_points(points)
            if wrong is None and any(value < 0 for _, value in points):
                wrong = f"a {name} below 0 is impossible"
            if wrong:
                raise UserError(f"{prefix}{name}_schedule={list(map(list, points))}: {wrong}")

    def check_with(self, run: RunConfig) -> None:
        """Refuse a buffer of another size than the rollout, or with rows of another policy."""
        if run.buffer.load_from is not None:
            raise UserError(
                f"buffer.load_from={run.buffer.load_from}: {self.name} learns from its own policy's rollouts alone and "
                "keeps no memory; set it to null, or choose an algorithm that has one, as exp=sac"
            )
        if run.buffer.size not in (None, self.rollout_steps):
            raise UserError(
                f"buffer.size={run.buffer.size}: an on-policy buffer holds one rollout; "
                f"set it to algo.rollout_steps ({self.rollout_steps}) or null"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Refuse observation keys that the environment does not have."""
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds)

    @property
    def collect_length(self) -> int:
        """T."""
        return self.rollout_steps

    @classmethod
    @functools.cache
    def schedulable(cls) -> tuple[str, ...]:
        """Names of the coefficients that may change with policy steps: those with a key `anneal_<name>`."""
        return tuple(f.name.removeprefix("anneal_") for f in fields(cls) if f.name.startswith("anneal_"))

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """The keys that make a coefficient depend on how long the run is to be."""
        return tuple(key for key in (f"anneal_{name}" for name in self.schedulable()) if getattr(self, key))

    def coefficients(self, policy_steps: int) -> dict[str, float]:
        """The values of all scheduled coefficients after `policy_steps`; `lr` is the optimizer's."""
        return {name: self.coefficient(name, policy_steps) for name in self.schedulable()}

    def coefficient(self, name: str, policy_steps: int) -> float:
        """The value of a scheduled coefficient after `policy_steps`."""
        points: Points | None = getattr(self, f"{name}_schedule")
        if points is not None:
            return piecewise(points, policy_steps, self.schedule_kind)
        initial: float = self.optimizer.lr if name == "lr" else getattr(self, name)
        return anneal(initial, policy_steps, self.total_steps) if getattr(self, f"anneal_{name}") else initial
