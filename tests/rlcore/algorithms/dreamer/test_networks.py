"""Networks of a world model that a subclass of a Dreamer's agent replaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from rlcore.algorithms.dreamer.networks import Networks
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.config.build import build
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from tests.contract.test_registry import SETTINGS

OBS = {"state": ArraySpec((3,), "float32"), "rgb": ArraySpec((8, 8, 3), "uint8")}
SPEC = EnvSpec("Some-v0", OBS, ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)))
KEYS = {"cnn_keys": {"encoder": ["rgb"]}, "mlp_keys": {"encoder": ["state"]}}


class Cell(nn.Module):
    def __init__(self, inputs: int, size: int, form: Any, rng: torch.Generator) -> None:
        super().__init__()
        self.gru = nn.GRUCell(inputs, size)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self.gru(x, h)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float | None, act: str) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).tanh()


class MeanPixel(nn.Module):
    output_size = 3

    def __init__(self, *settings: Any) -> None:
        super().__init__()

    def forward(self, images: list[Tensor]) -> Tensor:
        return images[0].mean((-2, -1))


class OneColor(nn.Module):
    def __init__(self, inputs: int, *settings: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.linear(x).unsqueeze(-1).unsqueeze(-1).expand(-1, -1, 8, 8)]


class Agent(dreamer_v3.Agent):
    networks = Networks(Cell, RMSNorm, MeanPixel, OneColor)


def make_world() -> Any:
    config: Any = build(dreamer_v3.Config, SETTINGS["dreamer_v3"] | KEYS, "algo.")
    return Agent(config, SPEC, "auto", torch.Generator().manual_seed(0)).world


@torch.no_grad()
def test_rssm_uses_own_cell() -> None:
    world = make_world()
    rssm, rng = world.rssm, torch.Generator().manual_seed(1)
    features, action = torch.randn(3, 2, world.encoder.output_size, generator=rng), torch.randn(3, 2, 2, generator=rng)
    start = ModelState(*(torch.randn(2, size, generator=rng) for size in rssm.sizes))
    noise = torch.rand(3, 2, rssm.latent.variables, generator=rng)
    state, _, _ = rssm.observe(features, action, torch.zeros(3, 2, dtype=torch.bool), noise, start)
    h, z = start
    for t in range(3):
        h = rssm.core.cell.gru(rssm.core.inputs(torch.cat([z, action[t]], -1)), h)
        torch.testing.assert_close(state.deter[t], h)
        z = state.stoch[t]


@torch.no_grad()
def test_world_model_uses_own_norm() -> None:
    world = make_world()
    assert not [name for name, module in world.named_modules() if isinstance(module, nn.LayerNorm)]
    x = torch.randn(4, world.feat_size, generator=torch.Generator().manual_seed(1))
    weights = {name: value.numpy() for name, value in world.reward.state_dict().items()}
    hidden = x.numpy() @ weights["hidden.0.weight"].T
    eps = world.reward.hidden[1].norm.eps
    hidden = np.tanh(hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + eps))
    np.testing.assert_allclose(world.reward.hidden[:2](x), hidden, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_world_model_uses_own_convolutions() -> None:
    world = make_world()
    pixels = torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    seen = world.encoder.preprocess({"rgb": pixels, "state": torch.zeros(5, 3)}, 1)
    expected = pixels.numpy().mean((1, 2)) / 255 - 0.5  # [-½, ½]
    np.testing.assert_allclose(world.encoder(seen)[:, :3], expected, atol=1e-6)
    image = world.decoder(torch.zeros(5, world.feat_size))["rgb"]
    assert image.shape == (5, 3, 8, 8) and torch.equal(image, image[..., :1, :1].expand_as(image))
