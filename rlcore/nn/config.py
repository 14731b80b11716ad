"""The keys of the networks, and what is refused of them; without torch, for a mistake is told before it is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.config.groups import NO_IMAGES
from rlcore.config.schema import arg, nearest
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, EnvSpec

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
    """Which observation keys a part of the agent sees."""

    encoder: tuple[str, ...] = arg((), "observation keys; a non-Dict observation is key `state`")


@dataclass(frozen=True)
class EncoderConfig(MLPConfig):
    """Vector keys, concatenated, through one perceptron."""

    mlp_features_dim: int | None = arg(64, "features of a last linear layer; null = no such layer", low=1)
    cnn_features_dim: int = arg(512, "features of image keys", low=1, unused=NO_IMAGES)


@dataclass(frozen=True)
class ActorConfig(MLPConfig):
    """The actor's perceptron and its normal's spread."""

    state_dependent_std: bool = arg(
        True, "Box: log std predicted from the observation; false: one parameter a dimension"
    )
    log_std_init: float = arg(0.0, "first log std of a normal", low=-20, high=2)


def check_keys(spec: EnvSpec, keys: Sequence[str], image_keys: Sequence[str]) -> None:
    """Refuse `algo.mlp_keys.encoder` and `algo.cnn_keys.encoder` where the environment or the encoder lacks a key."""
    if image_keys:
        raise UserError(f"algo.cnn_keys.encoder={list(image_keys)}: image keys are not there yet; set it to []")
    known = ", ".join(spec.obs)
    if not keys:
        raise UserError(f"algo.mlp_keys.encoder=[]: name at least one observation key of {spec.id}: {known}")
    for key in keys:
        if key not in spec.obs:
            raise UserError(
                f"algo.mlp_keys.encoder: {spec.id} has no key {key!r}{nearest(key, spec.obs)}; "
                f"all it gives: algo.mlp_keys.encoder=[{','.join(spec.obs)}]"
            )
        array = spec.obs[key]
        if array.dtype == "uint8" and len(array.shape) == 3:
            vectors = [k for k, other in spec.obs.items() if other.dtype != "uint8" or len(other.shape) != 3]
            raise UserError(
                f"algo.mlp_keys.encoder: key {key!r} of {spec.id} is an image (uint8, {list(array.shape)}), which a "
                "perceptron would see as raw 0 to 255, and image encoders are not there yet; "
                + (f"its other keys: algo.mlp_keys.encoder=[{','.join(vectors)}]" if vectors else "it has no other key")
            )


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
