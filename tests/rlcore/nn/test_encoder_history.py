"""Encoder of an agent that declares a history, compared with concatenations by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.nn.encoder import MultiEncoder
from rlcore.nn.network_keys import EncoderConfig, KeysConfig
from rlcore.spec import ACTION, ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.types import SingleProcess

PARTS = {
    "speed": ArraySpec((2,), "float64"),
    "kind": ArraySpec((), "int64", n=3, start=5),
    "reward": ArraySpec((1,), "float32"),
    "rgb": ArraySpec((36, 36, 3), "uint8", kind="image"),
}
DISCRETE = EnvSpec("Some-v0", PARTS, ActionSpec("MultiDiscrete", (2,), "int64", (2, 3), (4, 0)))
BOX = dataclasses.replace(DISCRETE, action=ActionSpec("Box", (2,), "float32", low=(-1.0, -2.0), high=(1.0, 2.0)))
FLAT = EncoderConfig(mlp_layers=0, cnn_features_dim=4)


def encoder(
    history: dict[str, Window], *vectors: str, images: tuple[str, ...] = (), spec: EnvSpec = DISCRETE, **more: float
) -> MultiEncoder:
    rng = torch.Generator().manual_seed(0)
    return MultiEncoder(spec, vectors, images, FLAT, rng, more.get("clip"), history=history)


def test_encoder_concatenates_frames_and_past_actions() -> None:
    history = {"speed": Window(2), "kind": Window(3, 2), ACTION: Window(2)}
    both = encoder(history, "speed", "kind", "reward")
    obs = {
        "speed": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.float64),
        "kind": torch.tensor([[5, 7, 6]]),
        "reward": torch.tensor([[9.0]]),
        ACTION: torch.tensor([[[0, 2], [1, 0]]]),
    }
    kinds, actions = [1, 0, 0, 0, 0, 1, 0, 1, 0], [1, 0, 0, 0, 1, 0, 1, 1, 0, 0]
    assert both(obs).tolist() == [[1, 2, 3, 4, *kinds, 9, *actions]]
    assert both.size == both.output_size == 4 + 9 + 1 + 10
    rows = {key: value.expand(4, 3, *value.shape[1:]) for key, value in obs.items()}
    assert torch.equal(both(rows, lead=2), both(obs).expand(4, 3, -1))


def test_encoder_leaves_past_box_actions_unnormalized() -> None:
    alone = encoder({ACTION: Window(2)}, spec=BOX, clip=1.0)
    assert alone({ACTION: torch.tensor([[[0.5, -2.0], [-1.0, 1.5]]])}).tolist() == [[0.5, -2.0, -1.0, 1.5]]
    alone.observe({}, SingleProcess())  # past actions are not normalized
    assert alone.output_size == 4


def test_encoder_normalizes_frames_with_each_row_once() -> None:
    history = {"speed": Window(2), ACTION: Window(1)}
    normalised = encoder(history, "speed", "reward", clip=1.5)
    speed = torch.tensor([[[1.0, 10.0]], [[2.0, 10.0]], [[6.0, 40.0]]])  # [T, B, 2]
    reward = torch.tensor([[[0.0]], [[0.0]], [[3.0]]])
    normalised.observe({"speed": speed, "reward": reward}, SingleProcess())
    assert normalised.normalizer is not None and normalised.normalizer.moments.count == 3
    # Means 3, 20 and 1; variances 14/3, 200 and 2.
    spread = torch.tensor([14 / 3, 200.0]).sqrt()
    older, newer = ((x[0] - torch.tensor([3.0, 20.0])) / spread for x in (speed[0], speed[1]))
    seen = {"speed": torch.cat(list(speed[:2]))[None], "reward": reward[2], ACTION: torch.tensor([[[1, 2]]])}
    expected = torch.cat([older, newer, torch.tensor([2 / 2**0.5]), torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])])
    torch.testing.assert_close(normalised(seen), expected[None])
    fresh = encoder(history, "speed", "reward", clip=1.5)
    fresh.load_state_dict(normalised.state_dict())
    assert torch.equal(fresh(seen), normalised(seen))


def test_encoder_stacks_image_frames_from_history_or_spec() -> None:
    frames = {"rgb": torch.randint(0, 256, (2, 3, 36, 36, 3), dtype=torch.uint8)}
    own = encoder({"rgb": Window(3)}, images=("rgb",))
    asked = dataclasses.replace(DISCRETE, obs={"rgb": dataclasses.replace(PARTS["rgb"], window=Window(3))})
    by_hand = dataclasses.replace(DISCRETE, obs={"rgb": ArraySpec((9, 36, 36), "uint8", kind="image")})
    stacked = frames["rgb"].permute(0, 1, 4, 2, 3).reshape(2, 9, 36, 36)
    expected = encoder({}, images=("rgb",), spec=by_hand)({"rgb": stacked})
    rng = torch.Generator().manual_seed(0)
    assert torch.equal(own(frames), expected) and expected.std() > 1e-3
    assert torch.equal(MultiEncoder(asked, (), ("rgb",), FLAT, rng)(frames), expected)


@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
def test_actor_critic_passes_history_to_encoder(spec: EnvSpec) -> None:
    asked = dataclasses.replace(spec, obs=PARTS | {"rgb": dataclasses.replace(PARTS["rgb"], window=Window(2))})
    keys = {"mlp_keys": KeysConfig(("speed",)), "cnn_keys": KeysConfig(("rgb",))}
    config = Config(total_steps=1, encoder=FLAT, normalize_obs=True, **keys)  # type: ignore[arg-type]
    history = {"speed": Window(4), ACTION: Window(1)}
    agent = ActorCritic(config, asked, "auto", torch.Generator().manual_seed(0), history)
    assert agent.history == {"rgb": Window(2), "speed": Window(4), ACTION: Window(1)}
    assert agent.encoder.output_size == 4 * 2 + (2 if spec is BOX else 5) + 4
