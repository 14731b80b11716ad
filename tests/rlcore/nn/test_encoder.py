from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlcore.config.run import VECTORS
from rlcore.errors import UserError
from rlcore.nn.encoder import MultiEncoder, Normalizer, flatten
from rlcore.nn.network_keys import EncoderConfig, check_keys
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.types import SingleProcess

SPEC = EnvSpec(
    "Some-v0",
    {
        "image": ArraySpec((2, 3), "uint8"),  # two axes: numbers, for example of a board
        "kind": ArraySpec((), "int64", n=3, start=5),
        "speed": ArraySpec((1,), "float64"),
        "level": ArraySpec((), "float32"),
    },
    ActionSpec("Discrete", (), "int64", (2,), (0,)),
)

IMAGES = {
    "pixels": ArraySpec((64, 64, 3), "uint8", kind="image"),
    "depth": ArraySpec((1, 64, 64), "float32", kind="image"),
    "small": ArraySpec((35, 64, 1), "uint8", kind="image"),
}
BESIDE = {"action_mask": ArraySpec((3,), "int8", kind="mask"), "desired_goal": ArraySpec((2,), "float32", kind="goal")}
WITH_PIXELS = dataclasses.replace(SPEC, obs=SPEC.obs | IMAGES | BESIDE)
ALL = VECTORS | {"image"}


def test_flatten_concatenates_keys_with_one_hot() -> None:
    obs = {
        "image": torch.arange(6, dtype=torch.uint8).reshape(1, 2, 3),
        "kind": torch.tensor([6]),
        "speed": torch.tensor([[2.5]], dtype=torch.float64),
    }
    flat = flatten(obs, SPEC, ("kind", "speed", "image"), 1)
    assert flat.dtype == torch.float32
    assert flat.tolist() == [[0, 1, 0, 2.5, 0, 1, 2, 3, 4, 5]]
    assert flat.shape[-1] == sum(SPEC.obs[key].size for key in ("kind", "speed", "image"))


def test_flatten_keeps_leading_dimensions() -> None:
    obs = {"level": torch.ones(4, 2), "kind": torch.full((4, 2), 7)}
    assert flatten(obs, SPEC, ("level", "kind"), 2).shape == (4, 2, 4)
    assert flatten({"level": torch.ones(2)}, SPEC, ("level",), 1).shape == (2, 1)


@pytest.mark.parametrize(
    ("keys", "image_keys", "sentence"),
    [
        ([], [], "name at least one observation key of Some-v0: image, kind, speed, level, pixels"),
        (["sped"], [], "mlp_keys.encoder: .*no key 'sped'.*did you mean 'speed'"),
        (["sped"], [], r"mlp_keys.encoder=\[.*\] and algo.cnn_keys.encoder=\[pixels,depth,small\]$"),
        (["sped"], ["pixels"], r"mlp_keys.encoder=\[[^\]]*\]$"),
        (["kind"], ["pixel"], "cnn_keys.encoder: .*no key 'pixel'.*did you mean 'pixels'"),
        (["kind"], ["image"], "'image' of Some-v0 is of kind vector.*cnn_keys.encoder=.pixels,depth,small."),
        (["kind", "pixels"], [], r"'pixels' .* kind image \(uint8, \[64, 64, 3\], .* algo.cnn_keys.*=\[image,kind,"),
        (["action_mask"], [], r"'action_mask' of Some-v0 is of kind mask \(int8, \[3\]\)"),
        (
            [],
            ["pixels", "small"],
            r"images must have equal sizes \(pixels 64 × 64, small 35 × 64\); set env.screen_size",
        ),
        ([], ["small"], r"images must have at least 36 pixels per side \(small 35 × 64\)"),
    ],
)
def test_check_keys_refuses_unreadable_keys(keys: list[str], image_keys: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_keys(WITH_PIXELS, keys, image_keys, ALL)


def test_check_keys_accepts_images_and_goals() -> None:
    check_keys(WITH_PIXELS, ["kind", "desired_goal"], ["pixels", "depth"], ALL)
    message = r"'pixels' of Some-v0 is of kind image .*; there are no such keys: set algo.cnn_keys.encoder=\[\]"
    with pytest.raises(UserError, match=message):
        check_keys(WITH_PIXELS, [], ["pixels"])


def test_normalizer_standardizes_only_after_update() -> None:
    normalizer = Normalizer(2, clip=10.0)
    rows = torch.tensor([[1.0, 100.0], [3.0, 300.0]])
    torch.testing.assert_close(normalizer(rows[:, :1].expand(2, 2)), rows[:, :1].expand(2, 2), rtol=1e-6, atol=0)
    normalizer.update(rows)
    torch.testing.assert_close(normalizer(rows), torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))


def test_normalizer_clips_and_handles_constant_rows() -> None:
    normalizer = Normalizer(1, clip=2.0)
    normalizer.update(torch.full((5, 1), 3.0))
    assert normalizer(torch.tensor([[3.0], [4.0], [-4.0]])).squeeze(-1).tolist() == [0.0, 2.0, -2.0]


def test_normalizer_state_dict_keeps_float64_statistics() -> None:
    normalizer, other = Normalizer(1, 10.0).bfloat16(), Normalizer(1, 10.0)
    normalizer.update(torch.tensor([[1.0], [2.0], [4.0]]))
    x = torch.tensor([[1.2345678]])
    other(x)  # fills the cache, which loading must drop
    other.load_state_dict(normalizer.state_dict())
    assert torch.equal(normalizer(x), other(x)) and normalizer(x).dtype == torch.float32
    # Mean 7/3; variance (16 + 1 + 25)/27 = 14/9.
    assert normalizer(x).item() == pytest.approx((1.2345678 - 7 / 3) / (14 / 9) ** 0.5, rel=1e-6)


def encoder(
    vectors: tuple[str, ...], images: tuple[str, ...], spec: EnvSpec = WITH_PIXELS, **config: Any
) -> MultiEncoder:
    small = EncoderConfig(**{"dense_units": 8, "mlp_layers": 1, "mlp_features_dim": 9, "cnn_features_dim": 5} | config)
    return MultiEncoder(spec, vectors, images, small, torch.Generator().manual_seed(0))


def test_encoder_without_layers_is_identity() -> None:
    obs = {"speed": torch.randn(3, 1, dtype=torch.float64), "level": torch.randn(3)}
    keys = ("level", "speed")
    blank = encoder(keys, (), mlp_layers=0)
    assert torch.equal(blank(obs), torch.stack([obs["level"], obs["speed"].squeeze(-1)], -1).float())
    assert blank.output_size == 2
    assert encoder(keys, ())(obs).shape == (3, 9) and encoder(keys, ()).output_size == 9
    assert encoder(keys, (), mlp_features_dim=None).output_size == 8


def test_encoder_puts_vectors_before_images() -> None:
    both, alone = encoder(("speed",), ("pixels",)), encoder(("speed",), ())
    obs = {"speed": torch.randn(2, 3, 1), "pixels": torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8)}
    features = both(obs, lead=2)
    assert features.shape == (2, 3, both.output_size) and both.output_size == 9 + 5
    assert features.dtype == torch.float32
    assert torch.equal(features[..., :9], alone(obs, lead=2))  # its weights are drawn with the same random numbers
    flat = both({key: rows.flatten(0, 1) for key, rows in obs.items()})
    torch.testing.assert_close(features.flatten(0, 1), flat)


def nature(encoder: MultiEncoder, x: Tensor) -> Tensor:
    """Apply the published network layer by layer to [N, channels, height, width] from -½ to ½."""
    first, _, second, _, third, _, _, last, _ = (part for part in encoder.cnn.layers)  # type: ignore[union-attr]
    for layer, stride in ((first, 4), (second, 2), (third, 1)):
        x = nn.functional.relu(nn.functional.conv2d(x, layer.weight, layer.bias, stride))
    return nn.functional.relu(nn.functional.linear(x.flatten(1), last.weight, last.bias))


def test_encoder_accepts_every_image_layout_and_type() -> None:
    # 64 → (64-8)/4+1 = 15 → (15-4)/2+1 = 6 → 4: 64·4·4 features before the linear layer.
    last = torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8)
    first = last.permute(0, 3, 1, 2).contiguous()
    by_last = encoder((), ("pixels",))
    spec = dataclasses.replace(WITH_PIXELS, obs={"pixels": ArraySpec((3, 64, 64), "uint8", kind="image")})
    by_first = encoder((), ("pixels",), spec)
    assert by_last.cnn is not None and by_last.cnn.layers[7].weight.shape == (5, 1024)
    expected = nature(by_last, first.double().div(255).sub(0.5).float())
    torch.testing.assert_close(by_last({"pixels": last}), expected)
    torch.testing.assert_close(by_first({"pixels": first}), expected)
    assert expected.std() > 1e-3
    floats = dataclasses.replace(WITH_PIXELS, obs={"pixels": ArraySpec((3, 64, 64), "float32", kind="image")})
    scaled = first.float() / 255 - 0.5
    torch.testing.assert_close(encoder((), ("pixels",), floats)({"pixels": scaled}), expected)


def test_encoder_stacks_images_and_frames_as_channels() -> None:
    obs = {
        "pixels": torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8),  # three frames
        "depth": torch.rand(2, 1, 64, 64),
    }
    stacked = dataclasses.replace(WITH_PIXELS.obs["pixels"], window=Window(3))
    two = encoder((), ("depth", "pixels"), dataclasses.replace(WITH_PIXELS, obs=WITH_PIXELS.obs | {"pixels": stacked}))
    frames = obs["pixels"].permute(0, 1, 4, 2, 3).reshape(2, 9, 64, 64).float() / 255 - 0.5
    torch.testing.assert_close(two(obs), nature(two, torch.cat([obs["depth"], frames], 1)))


def test_encoder_concatenates_frames_of_vector() -> None:
    spec = dataclasses.replace(WITH_PIXELS, obs={"kind": dataclasses.replace(SPEC.obs["kind"], window=Window(2))})
    frames = encoder(("kind",), (), spec, mlp_layers=0)
    assert frames({"kind": torch.tensor([[5, 7]])}).tolist() == [[1, 0, 0, 0, 0, 1]]
    assert frames.output_size == 6


def test_encoder_weights_depend_only_on_generator() -> None:
    torch.manual_seed(1)
    one = encoder(("speed",), ("pixels",), ortho_init=True)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = encoder(("speed",), ("pixels",), ortho_init=True)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in two.state_dict().items():
        assert torch.equal(value, one.state_dict()[name])
    assert two.cnn is not None
    kernels = two.cnn.layers[0].weight.flatten(1)
    torch.testing.assert_close(kernels @ kernels.T, 2 * torch.eye(32))  # gain √2


def test_encoder_observe_normalizes_only_vectors() -> None:
    obs = {"speed": torch.tensor([[[1.0], [2.0], [4.0]]]), "pixels": torch.zeros(1, 3, 64, 64, 3, dtype=torch.uint8)}
    rng = torch.Generator().manual_seed(0)
    both = MultiEncoder(WITH_PIXELS, ("speed",), ("pixels",), EncoderConfig(mlp_layers=0), rng, clip=10.0)
    both.observe(obs, SingleProcess())
    # Mean 7/3; variance (16 + 1 + 25)/27 = 14/9.
    expected = [(x - 7 / 3) / (14 / 9) ** 0.5 for x in (1, 2, 4)]
    assert both(obs, lead=2)[0, :, 0].tolist() == pytest.approx(expected, rel=1e-6)
