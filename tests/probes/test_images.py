"""Learning from images, together with a vector and over time, through the real training loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.nn import encoder
from tests.probes.test_policies import recent, train
from tests.soaking import heavy

pytestmark = heavy

KEYS: dict[str, Any] = {"mlp_keys": {"encoder": ["vector"]}, "cnn_keys": {"encoder": ["image"]}}
ALGO = KEYS | {
    "encoder": {"mlp_layers": 1, "mlp_features_dim": 8, "cnn_features_dim": 16},
    "optimizer": {"lr": 3e-3},
    "gamma": 0.9,
}
FRAMES = ALGO | {"mlp_keys": {"encoder": []}, "cnn_keys": {"encoder": ["rgb"]}}


def picture(steps: int = 2_000, algo: dict[str, Any] | None = None, **wrapper: Any) -> float:
    training = train("known/Picture-v0", steps, algo=ALGO | (algo or {}), screen_size=None, wrapper=wrapper)
    return recent(training)


@pytest.mark.parametrize("layout", ["first", "last"])
def test_ppo_learns_from_image_and_vector(layout: str) -> None:
    # Random actions earn ½, an agent that sees one of the two ¾, one that sees both 1.
    assert picture(layout=layout) > 0.92


def test_ppo_does_not_learn_from_blank_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def blank(x: Tensor) -> Tensor:
        return torch.zeros_like(x, dtype=torch.float32)

    monkeypatch.setattr(encoder, "scale_pixels", blank)
    assert picture() < 0.85


def test_ppo_does_not_learn_from_shifted_images(monkeypatch: pytest.MonkeyPatch) -> None:
    real = encoder.pixels
    monkeypatch.setattr(encoder, "pixels", lambda x, spec, lead: real(x, spec, lead).roll(1, 0))
    assert picture() < 0.85


@pytest.mark.parametrize(("frames", "low", "high"), [(2, 0.92, 1.0), (1, 0.2, 0.75)])
def test_ppo_needs_frame_stack_for_previous_frame(frames: int, low: float, high: float) -> None:
    training = train("known/Flash-v0", 1_500, algo=FRAMES, screen_size=None, frame_stack=frames)
    assert low <= recent(training) <= high
