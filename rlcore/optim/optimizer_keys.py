"""Config keys of an optimizer. The update rules are in `rlcore.optim.rules`, the clipping rules in `.clipping`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from rlcore.config.build import build
from rlcore.config.schema import Needs, arg
from rlcore.config.values import plain, spell
from rlcore.errors import UserError


class _Settings(dict[str, dict[str, Any]]):
    """Settings by name; the name of a class, `package.module:Class`, is always known and has no settings."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or ":" in str(name)

    def __missing__(self, name: str) -> dict[str, Any]:
        if ":" not in name:
            raise KeyError(name)
        return {}


# Settings of each update rule and their defaults. A plugin adds its own with `rlcore.optim.rules.register`.
SETTINGS: dict[str, dict[str, Any]] = _Settings(
    {
        "adam": {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False},
        "adamw": {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False},
        "laprop": {"betas": (0.9, 0.999), "eps": 1e-20},
        "rmsprop": {"alpha": 0.99, "eps": 1e-8, "centered": False, "momentum": 0.0},
        "rmsprop_tf": {"alpha": 0.9, "eps": 1e-10, "centered": False, "momentum": 0.0},
        "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
    }
)
# Names of the clipping rules. A plugin adds its own with `rlcore.optim.clipping.register`.
CLIP_NORMS = ["global", "tensor", "adaptive"]
FOR_ALL = ("name", "settings", "lr", "weight_decay", "warmup", "clip_norm", "agc", "agc_pmin", "groups")


@dataclass(frozen=True)
class GroupConfig:
    """Config keys of a parameter group of an optimizer; if a key is null, the optimizer's value of that key is used."""

    lr: float | None = arg(
        None, "initial learning rate of the group; a schedule scales it like that of the optimizer", above=0
    )
    weight_decay: float | None = arg(None, "L2 penalty (decoupled for adamw, laprop)", low=0)


@dataclass(frozen=True)
class OptimizerConfig:
    """Config keys of an optimizer. `name` selects the update rule; keys that this rule does not have must be null."""

    name: str = arg("adam", "optimizer, or a class: package.module:Class, torch.optim:Class", choices=SETTINGS)
    lr: float = arg(1e-3, "learning rate", above=0)
    eps: float | None = arg(1e-4, "added to the denominator (Adam, LaProp, RMSprop)", above=0)
    weight_decay: float = arg(0.0, "L2 penalty (decoupled for adamw, laprop)", low=0)
    betas: tuple[float, float] | None = arg(
        (0.9, 0.999), "decay rates of the two moments (Adam, LaProp)", low=0, high=1
    )
    alpha: float | None = arg(None, "decay of the squared gradient (RMSprop, 0.99; rmsprop_tf, 0.9)", low=0, high=1)
    centered: bool | None = arg(None, "normalize by the variance (RMSprop)")
    momentum: float | None = arg(None, "momentum (SGD, RMSprop)", low=0)
    dampening: float | None = arg(None, "dampening of the momentum (SGD)", low=0)
    nesterov: bool | None = arg(None, "Nesterov momentum (SGD)")
    amsgrad: bool | None = arg(None, "AMSGrad (Adam)")
    warmup: int = arg(0, "steps over which the learning rate grows linearly from 0 to lr", low=0)
    clip_norm: str = arg(
        "global",
        "norm to clip: of the whole gradient (global), of each tensor (tensor), or of each tensor divided by the norm "
        "of its parameters (adaptive)",
        choices=CLIP_NORMS,
    )
    settings: dict[str, Any] = arg(
        {},
        "arguments of the class, if name is one",
        needs=Needs("name", lambda name: ":" in name, "=package.module:Class"),
    )
    groups: dict[str, Any] = arg({}, "parameter groups: name or pattern -> {lr, weight_decay}; the first match counts")

    def check(self, prefix: str) -> None:
        """Raise UserError for keys that the selected optimizer does not have, and for invalid values.

        `prefix` is the dotted path of this config group, such as "algo.optimizer."; error messages start with it.
        """
        for field in fields(self):
            key, value = field.name, getattr(self, field.name)
            if key not in (*FOR_ALL, *SETTINGS[self.name]) and value not in (None, field.default):
                raise UserError(f"{prefix}{key}={value}: {self.name} has no {key}; set it to null")
        for key in ("betas", "alpha", "momentum"):  # decays of moving averages, which would never decay with 1 or more
            value = getattr(self, key)
            for decay in value if isinstance(value, tuple) else (value or 0.0,):
                if decay >= 1:
                    raise UserError(f"{prefix}{key}={spell(plain(value))}: must be below 1 (decay of an average)")
        if self.nesterov and (not self.momentum or self.dampening):
            raise UserError(
                f"{prefix}nesterov=true: needs {prefix}momentum above 0, and {prefix}dampening=0 or null; change them, "
                f"or set {prefix}nesterov=false"
            )
        for pattern, settings in self.groups.items():
            build(GroupConfig, settings, f"{prefix}groups.{pattern}.")

    def decayed_each_step(self) -> OptimizerConfig:
        """Return a config in which the weight decay of Adam does not depend on the learning rate.

        At every optimizer step, each weight is multiplied by 1 - `weight_decay`, as in the authors' code of Dreamer V2
        (arXiv:2010.02193). The returned config is that of AdamW with `weight_decay` divided by the learning rate, which
        is equivalent while the learning rate is constant. If `name` is not "adam", return the config without change.
        """
        if self.name != "adam":
            return self
        own = {pattern: (settings, self.of_group(pattern)) for pattern, settings in self.groups.items()}
        groups = {name: {**settings, "weight_decay": of.weight_decay / of.lr} for name, (settings, of) in own.items()}
        return replace(self, name="adamw", weight_decay=self.weight_decay / self.lr, groups=groups)

    def of_group(self, pattern: str) -> OptimizerConfig:
        """Return the settings that apply to a parameter group: those of the optimizer, with the group's values.

        `pattern` is the key of the group in `groups`.
        """
        own = build(GroupConfig, self.groups[pattern])
        lr, decay = own.lr, own.weight_decay
        return replace(
            self,
            lr=self.lr if lr is None else lr,
            weight_decay=self.weight_decay if decay is None else decay,
        )

    def __getitem__(self, key: str) -> Any:
        value = getattr(self, key)
        return SETTINGS[self.name][key] if value is None else value
