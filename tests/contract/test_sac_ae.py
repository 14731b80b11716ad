"""SAC-AE: invalid configs, initialization, and quantization of pixels to five bits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlcore.algorithms.sac.sac_ae.autoencoder import five_bits, initialise_orthogonal
from rlcore.algorithms.sac.sac_ae.config import Config
from rlcore.config.build import build
from rlcore.errors import UserError
from rlcore.nn.batch_norm import BatchNorm
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from tests.learning.assembly import assemble

BASE: dict[str, Any] = {"name": "sac_ae", "total_steps": 10_000}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cnn_keys": {"decoder": ["rgb"]}},
            r"algo.cnn_keys.decoder=\[rgb\]: rgb is not encoded; must be among algo.cnn_keys.encoder \(\[\]\)",
        ),
        (
            {"mlp_keys": {"encoder": ["state"], "decoder": []}},
            r"name a key of algo.cnn_keys.encoder or algo.mlp_keys.encoder, or use exp=sac",
        ),
        (
            {"decoder": {"optimizer": {"eps": 1e-3}}},
            r"algo.decoder.optimizer.eps=0.001: must be equal to algo.encoder.optimizer.eps",
        ),
    ],
)
def test_sac_ae_config_refuses_invalid_decoder(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Config, BASE | changes, "algo.").check("algo.")


@pytest.mark.parametrize(
    ("side", "message"),
    [(65, "images of rgb have 65 × 65 pixels; height and width must be even"), (14, "at least 16 pixels per side")],
)
def test_sac_ae_config_refuses_unsupported_image_sizes(side: int, message: str) -> None:
    action = ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,))
    spec = EnvSpec("Odd-v0", {"rgb": ArraySpec((side, side, 3), "uint8", kind="image")}, action)
    keys = {"mlp_keys": {"encoder": []}, "cnn_keys": {"encoder": ["rgb"]}}
    with pytest.raises(UserError, match=message):
        build(Config, BASE | keys, "algo.").check_spec(spec)


def test_initialise_orthogonal_is_delta_orthogonal() -> None:
    layer = torch.nn.Conv2d(8, 8, 3)
    initialise_orthogonal(layer, torch.Generator().manual_seed(0))
    middle = layer.weight[:, :, 1, 1]
    assert torch.allclose(middle @ middle.T, 2 * torch.eye(8), atol=1e-5)  # gain √2
    assert math.isclose(layer.weight.square().sum().item(), 16, rel_tol=1e-5)  # zero except in the middle
    assert not layer.bias.any()


def test_five_bits_quantizes_integer_and_float_pixels() -> None:
    whole, nothing = torch.tensor([0, 7, 8, 255], dtype=torch.uint8), torch.zeros(4)
    expected = torch.tensor([0, 0, 1, 31]) / 32 - 0.5
    assert torch.equal(five_bits(whole, nothing), expected)
    assert torch.equal(five_bits(torch.tensor([0.0, 0.031, 0.032, 1.0]), nothing), expected)


@pytest.mark.parametrize("name", ["sac_ae", "crossq"])
def test_image_critics_support_batch_norm(name: str) -> None:
    keys = {"mlp_keys": {"encoder": []}, "cnn_keys": {"encoder": ["rgb"]}}
    few = {
        "total_steps": 30,
        "learning_starts": 20,
        "per_rank_batch_size": 8,
        "hidden_size": 16,
        "per_rank_pretrain_steps": 0,
    }
    algo = {"name": name, **few, **keys, "critic": {"batch_norm": True}}
    training = assemble("point_mass", algo, num_envs=1, image_key="rgb", screen_size=36).run(30)
    norms = [module for module in training.learner.critics.modules() if isinstance(module, BatchNorm)]
    assert norms and all(norm.count == training.learner.updates for norm in norms)
    assert all(norm.mean.any() for norm in norms)
