"""Config keys of networks, and their checks.

This module does not import torch, so errors in a config are reported without waiting for the import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.config.run import VECTORS
from rlcore.config.schema import Needs, arg, other_default
from rlcore.config.values import nearest, spell
from rlcore.errors import UserError
from rlcore.spec import IMAGES_ARE, ActionSpec, EnvSpec, is_mask_name

# Name in a config -> class in torch.nn.
ACTIVATIONS: dict[str, str] = {
    "tanh": "Tanh",
    "relu": "ReLU",
    "elu": "ELU",
    "silu": "SiLU",
    "gelu": "GELU",
    "leaky_relu": "LeakyReLU",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "mish": "Mish",
    "identity": "Identity",
}


NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, kernel, stride of `rlcore.nn.encoder`
SMALLEST = 36  # smallest image side in pixels that `NATURE_LAYERS` accept; they reduce it to 1


@dataclass(frozen=True)
class MLPConfig:
    """Config keys of the hidden layers of an MLP."""

    dense_units: int = arg(64, "units of each hidden layer", low=1)
    mlp_layers: int = arg(2, "number of hidden layers; 0 = none", low=0)
    dense_act: str = arg("tanh", "activation (or its class, such as torch.nn.Tanh)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm after each hidden linear layer")
    ortho_init: bool = arg(False, "initialize with orthogonal weights and zero biases; the gain depends on the network")


@dataclass(frozen=True)
class KeysConfig:
    """Config key that lists the observation keys that the agent reads."""

    encoder: tuple[str, ...] = arg((), "observation keys; an observation that is not a Dict has the key `state`")


@dataclass(frozen=True)
class EncodedKeysConfig(KeysConfig):
    """Config keys that list observation keys, for an algorithm without a decoder.

    `decoder` has no effect. It exists because the configuration files of SheepRL set it.
    """

    decoder: tuple[str, ...] | None = arg(None, "keys to decode", unused="the algorithm has no decoder")


@dataclass(frozen=True)
class DecodedKeysConfig(KeysConfig):
    """Config keys that list the observation keys that the agent reads, and those that a decoder reconstructs."""

    decoder: tuple[str, ...] | None = arg(None, "keys to decode, among those of `encoder`; null = all of them")

    @property
    def decoded(self) -> tuple[str, ...]:
        """Observation keys that the decoder reconstructs: `decoder`, or all keys of `encoder` if `decoder` is null."""
        return self.encoder if self.decoder is None else self.decoder

    def check(self, prefix: str) -> None:
        """Raise UserError if `decoder` contains an observation key that is not in `encoder`.

        `prefix` is the dotted path of this config group, such as "algo.mlp_keys."; error messages start with it.
        """
        if extra := [key for key in self.decoded if key not in self.encoder]:
            raise UserError(
                f"{prefix}decoder=[{','.join(self.decoded)}]: {', '.join(extra)} is not encoded; must be among "
                f"{prefix}encoder ([{','.join(self.encoder)}])"
            )


@dataclass(frozen=True)
class EncoderConfig(MLPConfig):
    """Config keys of an observation encoder: an MLP for the concatenated vector keys, a CNN for the image keys."""

    mlp_features_dim: int | None = arg(
        64, "output features of the MLP's final linear layer; null = no such layer", low=1
    )
    cnn_features_dim: int = arg(512, "output features of the CNN", low=1)


@dataclass(frozen=True)
class FlatEncoderConfig(EncoderConfig):
    """Config keys of an observation encoder that has a CNN for image keys and, by default, no MLP for vector keys.

    Without an MLP, vector keys are concatenated.
    """

    mlp_layers: int = other_default(EncoderConfig, "mlp_layers", 0)


@dataclass(frozen=True)
class ActorConfig(MLPConfig):
    """Config keys of an actor network, and of the standard deviation of continuous actions."""

    state_dependent_std: bool = arg(
        True, "predict the log std of continuous actions from the observation; false = one parameter per dimension"
    )
    log_std_init: float = arg(0.0, "initial log std of continuous actions", low=-20, high=2)
    log_std_bound: float | None = arg(
        None,
        "b, with which the log std x of continuous actions becomes b tanh(x / b), so that it stays in [-b, b]; null = "
        "not bounded",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Config keys of the hidden layers of an off-policy actor or critic (`rlcore.nn.network`)."""

    hidden_size: int = arg(256, "units of each hidden layer", low=1)
    mlp_layers: int = arg(2, "number of hidden layers or residual blocks; 0 = none", low=0)
    dense_act: str = arg("relu", "activation (or its class, such as torch.nn.ReLU)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm after each hidden linear layer")
    dropout: float = arg(0.0, "dropout probability after each hidden linear layer", low=0, high=0.9)
    batch_norm: bool = arg(False, "batch normalization of the inputs and after each activation")
    renorm_warmup: int = arg(
        100_000,
        "number of batches after which batch normalization becomes batch renormalization",
        low=0,
        needs=Needs("batch_norm", bool, "=true"),
    )
    residual: bool = arg(False, "use SimBa's blocks x + MLP(LayerNorm(x)) instead of hidden layers")

    def check(self, prefix: str) -> None:
        """Raise UserError for kinds of layers that cannot be combined, such as LayerNorm and batch normalization.

        `prefix` is the dotted path of this config group, such as "algo.actor."; error messages start with it.
        """
        for name in ("layer_norm", "dropout", "batch_norm"):
            if self.residual and (value := getattr(self, name)):
                nothing = spell(type(value)())
                raise UserError(
                    f"{prefix}{name}={spell(value)}: cannot be combined with {prefix}residual=true; set it to {nothing}"
                )
        if self.layer_norm and self.batch_norm:
            raise UserError(
                f"{prefix}layer_norm=true: cannot be combined with {prefix}batch_norm=true; set one of them to false"
            )


def check_keys(
    spec: EnvSpec,
    keys: Sequence[str],
    image_keys: Sequence[str],
    kinds: frozenset[str] = VECTORS,
    smallest: int = SMALLEST,
) -> None:
    """Check that the environment has the observation keys of a config, and that the algorithm can read them.

    Args:
        spec: observation and action spaces of the environment.
        keys: value of `algo.mlp_keys.encoder`.
        image_keys: value of `algo.cnn_keys.encoder`.
        kinds: kinds of observation keys that the algorithm can read, for example "vector" and "image".
        smallest: smallest height and width of images, in pixels, that the convolutions accept.

    Raises:
        UserError: If the environment lacks a key, if the algorithm cannot read a key, or if the images are too small or
            differ in size. The message lists the valid keys.
    """
    if not keys and not image_keys:
        known = ", ".join(spec.obs)
        raise UserError(f"algo.mlp_keys.encoder=[]: name at least one observation key of {spec.id}: {known}")
    allowed = [*(kinds - {"image"})]
    images = [key for key, part in spec.obs.items() if part.kind == "image"] if "image" in kinds else []
    beside = f" and algo.cnn_keys.encoder=[{','.join(images)}]" if images and not image_keys else ""
    vectors = [key for key, part in spec.obs.items() if part.kind in allowed]
    _check_group(spec, keys, "algo.mlp_keys.encoder", vectors, beside)
    if image_keys:
        _check_group(spec, image_keys, "algo.cnn_keys.encoder", images)
        _check_sizes(spec, image_keys, smallest)


def check_masks(spec: EnvSpec, switch: str) -> None:
    """Raise UserError if the action masks of an environment do not fit its discrete actions.

    `switch` is the config key that switches masks off, for the message.
    """
    action = spec.action
    if action.continuous or spec.mask_keys:
        return
    off = f"correct the environment, or set {switch}=false to ignore it"
    for key, part in spec.obs.items():
        if part.kind == "mask":
            masks = ", ".join(f"{key} {list(part.shape)}" for key, part in spec.obs.items() if part.kind == "mask")
            needed = f"needs masks with {sum(action.choices)} entries in total, one for each choice"
            raise UserError(
                f"{switch}=true: the action masks of {spec.id} ({masks}) have a wrong shape: its {action.space} action "
                f"{needed if action.choices else 'has no discrete part'}; {off}"
            )
        if is_mask_name(key):
            raise UserError(
                f"{switch}=true: the action mask {key!r} of {spec.id} ({part.describe()}) has a wrong space: it must "
                f"be MultiBinary, or a Box of bool or with the bounds 0 and 1; {off}"
            )


def _check_group(spec: EnvSpec, keys: Sequence[str], place: str, allowed: Sequence[str], beside: str = "") -> None:
    """Raise UserError if an observation key is not among the `allowed` keys.

    `place` is the config key that lists the observation keys, such as "algo.mlp_keys.encoder". The message suggests a
    value for it, followed by the text `beside`, which can suggest a second override.
    """
    fix = f"; set {place}=[{','.join(allowed)}]" if allowed else f"; there are no such keys: set {place}=[]"
    fix += beside
    for key in keys:
        if key not in spec.obs:
            raise UserError(f"{place}: {spec.id} has no key {key!r}{nearest(key, spec.obs)}{fix}")
        if key not in allowed:
            part, kind = spec.obs[key], spec.obs[key].kind
            other = f", for algo.{'cnn' if kind == 'image' else 'mlp'}_keys.encoder"
            description = f"{part.describe()}{other if kind != 'mask' else ''}"
            if place.startswith("algo.cnn") and part.looks_like_image:
                fix = f": {IMAGES_ARE}; declare it as such in the environment's observation space{fix}"
            raise UserError(f"{place}: key {key!r} of {spec.id} is of kind {kind} ({description}){fix}")


def _check_sizes(spec: EnvSpec, keys: Sequence[str], smallest: int) -> None:
    """Raise UserError if images differ in size, or if a side has fewer than `smallest` pixels."""
    sizes = {key: spec.obs[key].pixels for key in keys}
    each = ", ".join(f"{key} {height} × {width}" for key, (height, width) in sizes.items())
    if len({*sizes.values()}) > 1:
        raise UserError(f"algo.cnn_keys.encoder: images must have equal sizes ({each}); set env.screen_size")
    if min(sizes[keys[0]]) < smallest:
        raise UserError(
            f"algo.cnn_keys.encoder: images must have at least {smallest} pixels per side ({each}); set env.screen_size"
        )


def kind_of(action: ActionSpec, distribution: str) -> str:
    """Return the kind of policy distribution: "discrete", "normal", "tanh_normal", "own" or "composite".

    "own" is a class of the user, `package.module:Class`. "composite" stands for one distribution for each part of a
    composite action; `distribution` then applies to its Box parts. `distribution` is the value of the config key
    `distribution.type`; "auto" selects the default of the action space.
    Raise UserError if the distribution is not available for the action space.
    """
    if ":" in distribution:
        return "own"
    if action.parts:
        boxes = [part for part in action.parts if part.continuous]
        if distribution not in ("auto", *(("normal", "tanh_normal") if boxes else ())):
            raise UserError(
                f"distribution.type={distribution}: not available for a Dict or Tuple action; must be auto, or normal "
                "or tanh_normal for its Box parts"
            )
        for box in boxes:
            kind_of(box, distribution)
        return "composite"
    fitting = ("normal", "tanh_normal") if action.continuous else ("discrete",)
    kind = fitting[0] if distribution == "auto" else distribution
    if kind not in fitting:
        allowed = ", ".join(("auto", *fitting))
        raise UserError(
            f"distribution.type={kind}: not available for a {action.space} action; must be one of {allowed}"
        )
    if kind == "tanh_normal" and not all(map(math.isfinite, (*action.low, *action.high))):
        raise UserError(
            "distribution.type=tanh_normal: needs actions with finite lower and upper bounds, but an action of this "
            "environment has an infinite bound; set it to normal"
        )
    return kind
