"""Config keys of on-policy algorithms: rollout, networks, optimizer and schedules."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore.config.run import VECTORS, AlgorithmConfig
from rlcore.config.schema import Needs, arg
from rlcore.config.windows import check_windows, read_windows
from rlcore.errors import UserError
from rlcore.functional.schedules import Points, anneal, check_points, piecewise
from rlcore.nn.network_keys import (
    ACTIVATIONS,
    SMALLEST,
    ActorConfig,
    EncoderConfig,
    KeysConfig,
    MLPConfig,
    check_keys,
    check_masks,
)
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig
    from rlcore.spec import EnvSpec, Window

Schedule = tuple[tuple[float, float], ...] | None


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """Config keys of every on-policy algorithm."""

    kinds: ClassVar[frozenset[str]] = VECTORS | {"image"}
    obeys_masks_with: ClassVar[str] = "algo.action_masks=true"

    rollout_steps: int = arg(128, "steps of each environment in a rollout", low=1)
    gamma: float = arg(0.99, "discount of one step", above=0, high=1)
    gae_lambda: float = arg(0.95, "λ of generalized advantage estimation", low=0, high=1)
    gae_method: str = arg(
        "loop",
        "computation of advantages: loop (sequential), log_scan (parallel), or auto (loop if rollout_steps <= 16, "
        "otherwise log_scan)",
        choices=("loop", "log_scan", "auto"),
    )
    loss_reduction: str = arg("mean", "reduction over the samples of a gradient step", choices=("mean", "sum"))
    normalize_advantages: bool = arg(False, "standardize the advantages of a minibatch")
    vf_coef: float = arg(1.0, "weight of the value loss, which has no factor ½", low=0)
    ent_coef: float = arg(0.0, "weight of the entropy bonus", low=0)
    anneal_lr: bool = arg(False, "decrease the learning rate linearly to 0 at total_steps")
    anneal_ent_coef: bool = arg(False, "decrease ent_coef linearly to 0 at total_steps")
    lr_schedule: Schedule = arg(None, "learning rate schedule [[policy steps, lr], ...]; null = constant")
    ent_coef_schedule: Schedule = arg(None, "entropy schedule [[policy steps, ent_coef], ...]; null = constant")
    schedule_kind: str = arg("linear", "interpolation between the points of a schedule", choices=("linear", "step"))
    max_grad_norm: float = arg(0.0, "maximum gradient norm; 0 = no clipping", low=0)
    normalize_obs: bool = arg(False, "normalize observations by their running mean and std")
    normalize_reward: bool = arg(False, "divide rewards by the std of the discounted return")
    reward_scale: str = arg(
        "running",
        "std by which rewards are divided: that of the discounted returns of all rollouts so far, or of this rollout",
        choices=("running", "rollout"),
        needs=Needs("normalize_reward", bool, "=true"),
    )
    obs_clip: float = arg(
        10.0,
        "clip normalized observations to this absolute value",
        above=0,
        needs=Needs("normalize_obs", bool, "=true"),
    )
    reward_clip: float = arg(
        10.0, "clip normalized rewards to this absolute value", above=0, needs=Needs("normalize_reward", bool, "=true")
    )
    dense_units: int = arg(64, "default number of units in each hidden layer", low=1)
    mlp_layers: int = arg(2, "default number of hidden layers", low=0)
    dense_act: str = arg("tanh", "default activation", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "use LayerNorm in hidden layers, by default")
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector observation keys")
    cnn_keys: KeysConfig = arg(KeysConfig(), "image observation keys")
    action_masks: bool = arg(True, "choose only actions that the environment's action masks allow, if it returns masks")
    model: Any = arg(
        None, "your own network, package.module:Class, in place of encoder, actor and critic; null = built-in network"
    )
    model_config: dict[str, Any] = arg(
        {},
        "arguments of your own network, for example algo.model_config.units=64",
        needs=Needs("model", lambda model: model is not None, "=package.module:Class"),
    )
    windows: dict[str, Any] = arg(
        {},
        "past observations that the agent also receives: key -> {frames: n, dilation: 1, kind: rolling or padded}; "
        "rolling = the first observation of an episode is repeated, padded = zeros and a mask",
    )
    encoder: EncoderConfig = arg(EncoderConfig(), "encoder, shared by actor and critic")
    actor: ActorConfig = arg(ActorConfig(), "actor network after the encoder")
    critic: MLPConfig = arg(MLPConfig(), "critic network after the encoder")
    optimizer: OptimizerConfig = arg(OptimizerConfig(), "optimizer of actor and critic")

    def check(self, prefix: str) -> None:
        """Raise UserError for an invalid schedule of a coefficient, or for two settings that contradict each other.

        `prefix` is the dotted path of this config group, such as "algo."; error messages start with it.
        """
        super().check(prefix)
        instance = hasattr(self.model, "state_dict")  # given by a program
        if self.model is not None and not instance and ":" not in str(self.model):
            raise UserError(f"{prefix}model={self.model}: must be a text package.module:Class, or null")
        read_windows(self.windows, f"{prefix}windows")
        schedules = [f"{name}_schedule" for name in self.schedulable()]
        if self.schedule_kind != "linear" and not any(getattr(self, key) for key in schedules):
            keys = " or ".join(f"{prefix}{key}" for key in schedules)
            raise UserError(
                f"{prefix}schedule_kind={self.schedule_kind}: has no effect without a schedule; set {keys}, or remove "
                f"{prefix}schedule_kind"
            )
        for key in self.annealing_keys:
            if self.total_steps is None:
                raise UserError(
                    f"{prefix}{key}=true: needs {prefix}total_steps, because the value reaches 0 there; set "
                    f"{prefix}total_steps, or set {prefix}{key}=false and "
                    f"{prefix}{key.removeprefix('anneal_')}_schedule=[[0, VALUE], [POLICY_STEPS, VALUE]]"
                )
        for name in self.schedulable():
            points = getattr(self, f"{name}_schedule")
            if points is None:
                continue
            if getattr(self, f"anneal_{name}"):
                raise UserError(
                    f"{prefix}{name}_schedule cannot be combined with {prefix}anneal_{name}=true; "
                    f"set {prefix}anneal_{name}=false, or remove {prefix}{name}_schedule"
                )
            if wrong := check_points(points) or self._check_values(name, points, prefix):
                raise UserError(f"{prefix}{name}_schedule={list(map(list, points))}: {wrong}")

    def _check_values(self, name: str, points: Points, prefix: str) -> str | None:
        """Return an error message if the coefficient `name` does not allow the values of a schedule, else None.

        A lower bound that the coefficient must exceed is allowed in a part of the training, because annealing ends at
        0. It is not allowed in all of it.
        """
        owner, key = (OptimizerConfig, f"{prefix}optimizer.lr") if name == "lr" else (type(self), f"{prefix}{name}")
        (meta,) = (field.metadata for field in fields(owner) if field.name == key.rpartition(".")[2])
        values = [value for _, value in points]
        above, high = meta.get("above"), meta.get("high")
        low = next((bound for bound in (above, meta.get("low")) if bound is not None), 0)
        if min(values) < low:
            return f"values of {name} must not be below {low:g}"
        if high is not None and max(values) > high:
            return f"values of {name} must not be above {high:g}"
        steps = [0, self.step_limit, *(step for step, _ in points if step < self.step_limit)]
        if above is not None and all(piecewise(points, int(step), self.schedule_kind) <= above for step in steps):
            return (
                f"{name} is {above:g} during the whole training ({prefix}total_steps={self.total_steps}), so nothing "
                f"is learned; add a value above {above:g}, or set the constant {key} instead"
            )
        return None

    def check_with(self, run: RunConfig) -> None:
        """Raise UserError if `buffer.load_from` is set, or if `buffer.size` differs from `rollout_steps`.

        An on-policy algorithm cannot learn from stored data of another policy. Its buffer stores exactly one rollout.
        """
        if run.buffer.load_from is not None:
            raise UserError(
                f"buffer.load_from={run.buffer.load_from}: {self.name} is on-policy and has no replay buffer; "
                "set it to null, or choose an off-policy algorithm such as exp=sac"
            )
        if run.buffer.size not in (None, self.rollout_steps):
            raise UserError(
                f"buffer.size={run.buffer.size}: the buffer of an on-policy algorithm stores one rollout; "
                f"set it to algo.rollout_steps ({self.rollout_steps}) or null"
            )

    def check_spec(self, spec: EnvSpec) -> None:
        """Raise UserError if the algorithm cannot read the observation keys that the config names.

        For example, the environment may lack a key, its images may be too small, or its action masks may not fit its
        actions.
        """
        smallest = SMALLEST if self.model is None else 1
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds, smallest)
        check_windows(self.history, spec, (*self.mlp_keys.encoder, *self.cnn_keys.encoder), "algo.windows")
        if self.action_masks:
            check_masks(spec, "algo.action_masks")

    @property
    def obeys_masks(self) -> bool:
        """True if the policy chooses only actions that the environment's action masks allow."""
        return self.action_masks

    @property
    def history(self) -> dict[str, Window]:
        """Return observation key -> window, for the keys of which the agent also receives past observations."""
        return read_windows(self.windows, "algo.windows")

    @property
    def needs_allowed_action(self) -> bool:
        """True if it is an error that action masks allow no action."""
        return self.action_masks

    @property
    def collect_length(self) -> int:
        """Number T of time steps that each environment takes between two updates."""
        return self.rollout_steps

    @classmethod
    @functools.cache
    def schedulable(cls) -> tuple[str, ...]:
        """Return the names of all coefficients that can follow a schedule, for example `lr` and `ent_coef`.

        A coefficient is in this list if the config has a key `anneal_<name>`.
        """
        return tuple(f.name.removeprefix("anneal_") for f in fields(cls) if f.name.startswith("anneal_"))

    def metric_names(self) -> frozenset[str]:
        """Return the names of the metrics that the learner reports: losses, gradient norm, coefficients, masks."""
        losses = {f"Loss/{name}_loss" for name in ("policy", "value", "entropy")}
        coefficients = {f"Info/{name}" for name in self.schedulable() if name != "lr"}
        masks = {"Info/allowed_choices"} if self.action_masks else set[str]()
        return frozenset({*losses, *coefficients, *masks, "Info/grad_norm", "Info/learning_rate"})

    @property
    def annealing_keys(self) -> tuple[str, ...]:
        """Config keys that make the results of training depend on `total_steps`.

        These are the keys `anneal_*` that are true.
        """
        return tuple(key for key in (f"anneal_{name}" for name in self.schedulable()) if getattr(self, key))

    def coefficients(self, policy_steps: int) -> dict[str, float]:
        """Return name -> value of all coefficients that can follow a schedule, such as `lr` and `ent_coef`.

        `policy_steps` is the number of policy steps taken so far, at which the schedules are evaluated.
        """
        return {name: self.coefficient(name, policy_steps) for name in self.schedulable()}

    def coefficient(self, name: str, policy_steps: int) -> float:
        """Return the value of the coefficient `name` after `policy_steps` policy steps.

        The value follows `<name>_schedule` if that key is set. If `anneal_<name>` is true, it decreases linearly to 0
        at `total_steps`. Otherwise it is constant.
        """
        points: Points | None = getattr(self, f"{name}_schedule")
        if points is not None:
            return piecewise(points, policy_steps, self.schedule_kind)
        initial: float = self.optimizer.lr if name == "lr" else getattr(self, name)
        return anneal(initial, policy_steps, self.step_limit) if getattr(self, f"anneal_{name}") else initial
