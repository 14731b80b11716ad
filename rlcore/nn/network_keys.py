"""The keys of the networks, and what is refused of them; without torch, for a mistake is told before it is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.config.algorithm import VECTORS
from rlcore.config.schema import Needs, arg, other_default
from rlcore.config.values import nearest, spell
from rlcore.errors import UserError
from rlcore.spec import IMAGES_ARE, ActionSpec, EnvSpec

# Name in a config -> class of torch.nn.
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


NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, kernel, stride of `rlcore.nn.cnn`
SMALLEST = 36  # pixels a side, of which these layers leave one


@dataclass(frozen=True)
class MLPConfig:
    """Hidden layers of one perceptron."""

    dense_units: int = arg(64, "units of each hidden layer", low=1)
    mlp_layers: int = arg(2, "hidden layers; 0 = none", low=0)
    dense_act: str = arg("tanh", "activation (torch.nn.Tanh and the like are accepted)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm after each hidden linear layer")
    ortho_init: bool = arg(False, "orthogonal weights and zero biases, with the part's own gains")


@dataclass(frozen=True)
class KeysConfig:
    """Observation keys that a part of the agent sees."""

    encoder: tuple[str, ...] = arg((), "observation keys; a non-Dict observation is key `state`")


@dataclass(frozen=True)
class EncodedKeysConfig(KeysConfig):
    """Keys, with those of a decoder that SheepRL's files name."""

    decoder: tuple[str, ...] | None = arg(None, "keys that are decoded", unused="nothing is decoded")


@dataclass(frozen=True)
class DecodedKeysConfig(KeysConfig):
    """Observation keys that are seen, and those of them that are reconstructed."""

    decoder: tuple[str, ...] | None = arg(None, "keys that are decoded, among those of `encoder`; null = all of them")

    @property
    def decoded(self) -> tuple[str, ...]:
        """The keys that are decoded."""
        return self.encoder if self.decoder is None else self.decoder

    def check(self, prefix: str) -> None:
        """Refuse keys that are decoded and not encoded; `prefix` is the place of this group, for messages."""
        if extra := [key for key in self.decoded if key not in self.encoder]:
            raise UserError(
                f"{prefix}decoder=[{','.join(self.decoded)}]: {', '.join(extra)} is not encoded; must be among "
                f"{prefix}encoder ([{','.join(self.encoder)}])"
            )


@dataclass(frozen=True)
class EncoderConfig(MLPConfig):
    """Vector keys, concatenated, through one perceptron; image keys through one network of convolutions."""

    mlp_features_dim: int | None = arg(64, "features of a last linear layer; null = no such layer", low=1)
    cnn_features_dim: int = arg(512, "features of image keys", low=1)


@dataclass(frozen=True)
class FlatEncoderConfig(EncoderConfig):
    """An encoder that hands vectors on as they are; images have convolutions."""

    mlp_layers: int = other_default(EncoderConfig, "mlp_layers", 0)


@dataclass(frozen=True)
class ActorConfig(MLPConfig):
    """The actor's perceptron and its normal's spread."""

    state_dependent_std: bool = arg(
        True, "Box: log std predicted from the observation; false: one parameter a dimension"
    )
    log_std_init: float = arg(0.0, "first log std of a normal", low=-20, high=2)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Hidden layers of an off-policy actor or critic (`rlcore.nn.network`)."""

    hidden_size: int = arg(256, "units of each hidden layer", low=1)
    mlp_layers: int = arg(2, "hidden layers, or residual blocks; 0 = none", low=0)
    dense_act: str = arg("relu", "activation (torch.nn.ReLU and the like are accepted)", choices=tuple(ACTIVATIONS))
    layer_norm: bool = arg(False, "LayerNorm after each hidden linear layer")
    dropout: float = arg(0.0, "share that is dropped after each hidden linear layer", low=0, high=0.9)
    batch_norm: bool = arg(False, "batch normalisation of the inputs and after each activation")
    renorm_warmup: int = arg(
        100_000,
        "batches after which it is renormalised by the running statistics",
        low=0,
        needs=Needs("batch_norm", bool, "=true"),
    )
    residual: bool = arg(False, "SimBa's blocks x + MLP(LayerNorm(x)) in place of hidden layers")

    def check(self, prefix: str) -> None:
        """Refuse what residual blocks do not have, and two norms; `prefix` is the place of this group, for messages."""
        for name in ("layer_norm", "dropout", "batch_norm"):
            if self.residual and (value := getattr(self, name)):
                nothing = spell(type(value)())
                raise UserError(f"{prefix}{name}={spell(value)}: not beside {prefix}residual=true; set it to {nothing}")
        if self.layer_norm and self.batch_norm:
            raise UserError(f"{prefix}layer_norm=true: not beside {prefix}batch_norm=true; set one of them to false")


def check_keys(
    spec: EnvSpec,
    keys: Sequence[str],
    image_keys: Sequence[str],
    kinds: frozenset[str] = VECTORS,
    smallest: int = SMALLEST,
) -> None:
    """Refuse `algo.mlp_keys.encoder` and `algo.cnn_keys.encoder` where the environment or the encoder lacks a key.

    Args:
        spec: of the environment.
        keys: of the first.
        image_keys: of the second.
        kinds: of keys that the algorithm reads.
        smallest: pixels a side that its convolutions need.

    Raises:
        UserError: names the key and what it may be.
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


def _check_group(spec: EnvSpec, keys: Sequence[str], place: str, allowed: Sequence[str], beside: str = "") -> None:
    """Refuse a key that is not among those `allowed` of a group of keys; `beside` is what else to type."""
    fix = f"; all of them: {place}=[{','.join(allowed)}]" if allowed else f"; there is none here: {place}=[]"
    fix += beside
    for key in keys:
        if key not in spec.obs:
            raise UserError(f"{place}: {spec.id} has no key {key!r}{nearest(key, spec.obs)}{fix}")
        if key not in allowed:
            part, kind = spec.obs[key], spec.obs[key].kind
            other = f", which algo.{'cnn' if kind == 'image' else 'mlp'}_keys.encoder may name"
            told = f"{part.describe()}{other if kind != 'mask' else ''}"
            if place.startswith("algo.cnn") and part.looks_like_image:
                fix = f": {IMAGES_ARE}; declare it so in the environment's space{fix}"
            raise UserError(f"{place}: key {key!r} of {spec.id} is of kind {kind} ({told}){fix}")


def _check_sizes(spec: EnvSpec, keys: Sequence[str], smallest: int) -> None:
    """Refuse images of different sizes, and such as are too small."""
    sizes = {key: spec.obs[key].pixels for key in keys}
    told = ", ".join(f"{key} {height} × {width}" for key, (height, width) in sizes.items())
    if len({*sizes.values()}) > 1:
        raise UserError(f"algo.cnn_keys.encoder: images of one size are needed ({told}); set env.screen_size")
    if min(sizes[keys[0]]) < smallest:
        raise UserError(f"algo.cnn_keys.encoder: at least {smallest} pixels a side ({told}); set env.screen_size")


def kind_of(action: ActionSpec, distribution: str) -> str:
    """The distribution an action space gets, "discrete", "normal" or "tanh_normal", under `distribution.type`.

    A UserError where the space cannot have the one that was asked for.
    """
    fitting = ("normal", "tanh_normal") if action.continuous else ("discrete",)
    kind = fitting[0] if distribution == "auto" else distribution
    if kind not in fitting:
        allowed = ", ".join(("auto", *fitting))
        raise UserError(f"distribution.type={kind}: a {action.space} action takes one of {allowed}")
    if kind == "tanh_normal" and not all(map(math.isfinite, (*action.low, *action.high))):
        raise UserError("distribution.type=tanh_normal: needs an action bounded on both sides; use normal")
    return kind
