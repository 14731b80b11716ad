"""Agent of on-policy actor-critic algorithms, with vectors and images."""

from __future__ import annotations

import torch

from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.nn.network_keys import EncoderConfig, KeysConfig
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window

SPEC = EnvSpec(
    "Some-v0",
    {
        "rgb": ArraySpec((1, 36, 36), "uint8", kind="image", window=Window(2, 3)),
        "state": ArraySpec((2,), "float64"),
        "mask": ArraySpec((2,), "int8", kind="mask"),
    },
    ActionSpec("Discrete", (), "int64", (2,), (0,)),
)


def agent(seed: int, *images: str) -> ActorCritic:
    encoder = EncoderConfig(mlp_features_dim=4, cnn_features_dim=4)
    keys = {"cnn_keys": KeysConfig(images), "encoder": encoder, "normalize_obs": True}
    config = Config(total_steps=1, **keys)  # type: ignore[arg-type]
    return ActorCritic(config, SPEC, "auto", torch.Generator().manual_seed(seed))


def test_actor_critic_history_has_selected_image_keys() -> None:
    assert agent(0, "rgb").keys == ("state", "rgb", "mask")
    assert agent(0, "rgb").history == {"rgb": Window(2, 3)}
    assert agent(0).history == {}
