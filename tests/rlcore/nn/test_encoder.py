from __future__ import annotations

import dataclasses

import pytest
import torch

from rlcore.errors import UserError
from rlcore.nn.config import EncoderConfig, check_keys
from rlcore.nn.encoder import Normalizer, VectorEncoder, flatten
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "Some-v0",
    {
        "image": ArraySpec((2, 3), "uint8"),  # two axes: numbers, as a board has them
        "kind": ArraySpec((), "int64", n=3, start=5),
        "speed": ArraySpec((1,), "float64"),
        "level": ArraySpec((), "float32"),
    },
    ActionSpec("Discrete", (), "int64", (2,), (0,)),
)

WITH_PIXELS = dataclasses.replace(SPEC, obs=SPEC.obs | {"pixels": ArraySpec((8, 8, 3), "uint8")})


def test_keys_are_concatenated_in_the_order_given_with_discrete_ones_one_hot() -> None:
    obs = {
        "image": torch.arange(6, dtype=torch.uint8).reshape(1, 2, 3),
        "kind": torch.tensor([6]),
        "speed": torch.tensor([[2.5]], dtype=torch.float64),
    }
    flat = flatten(obs, SPEC, ("kind", "speed", "image"), 1)
    assert flat.dtype == torch.float32
    assert flat.tolist() == [[0, 1, 0, 2.5, 0, 1, 2, 3, 4, 5]]
    assert flat.shape[-1] == sum(SPEC.obs[key].size for key in ("kind", "speed", "image"))


def test_leading_dimensions_are_kept_and_a_shapeless_key_is_one_number() -> None:
    obs = {"level": torch.ones(4, 2), "kind": torch.full((4, 2), 7)}
    assert flatten(obs, SPEC, ("level", "kind"), 2).shape == (4, 2, 4)
    assert flatten({"level": torch.ones(2)}, SPEC, ("level",), 1).shape == (2, 1)


@pytest.mark.parametrize(
    ("keys", "image_keys", "sentence"),
    [
        ([], [], "name at least one observation key of Some-v0: image, kind, speed, level, pixels"),
        (["sped"], [], "no key 'sped'.*did you mean 'speed'"),
        (["kind"], ["image"], "algo.cnn_keys.encoder.*not there yet"),
        (["kind", "pixels"], [], r"key 'pixels' of Some-v0 is an image \(uint8, \[8, 8, 3\]\).*encoder=\[image,kind,"),
    ],
)
def test_keys_that_cannot_be_read_are_refused_by_name(keys: list[str], image_keys: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_keys(WITH_PIXELS, keys, image_keys)


def test_normalizer_changes_only_when_told_and_then_centres_and_scales() -> None:
    normalizer = Normalizer(2, clip=10.0)
    rows = torch.tensor([[1.0, 100.0], [3.0, 300.0]])
    torch.testing.assert_close(normalizer(rows[:, :1].expand(2, 2)), rows[:, :1].expand(2, 2), rtol=1e-6, atol=0)
    normalizer.update(rows)
    torch.testing.assert_close(normalizer(rows), torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))


def test_normalizer_clips_and_stays_finite_where_nothing_varied() -> None:
    normalizer = Normalizer(1, clip=2.0)
    normalizer.update(torch.full((5, 1), 3.0))
    assert normalizer(torch.tensor([[3.0], [4.0], [-4.0]])).squeeze(-1).tolist() == [0.0, 2.0, -2.0]


def test_normalizer_statistics_are_in_the_state_dict_and_keep_float64_in_half_precision() -> None:
    normalizer, other = Normalizer(1, 10.0).bfloat16(), Normalizer(1, 10.0)
    normalizer.update(torch.tensor([[1.0], [2.0], [4.0]]))
    x = torch.tensor([[1.2345678]])
    other(x)  # fills the cache, which loading must drop
    other.load_state_dict(normalizer.state_dict())
    assert torch.equal(normalizer(x), other(x)) and normalizer(x).dtype == torch.float32
    # Mean 7/3; variance (16 + 1 + 25)/27 = 14/9.
    assert normalizer(x).item() == pytest.approx((1.2345678 - 7 / 3) / (14 / 9) ** 0.5, rel=1e-6)


def test_encoder_without_a_layer_is_the_identity_and_ends_with_the_features_asked_for() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    blank = VectorEncoder(4, EncoderConfig(mlp_layers=0, mlp_features_dim=9), torch.Generator())
    assert torch.equal(blank(x), x) and blank.output_size == 4
    encoder = VectorEncoder(4, EncoderConfig(dense_units=8, mlp_layers=1, mlp_features_dim=9), torch.Generator())
    assert encoder(x).shape == (3, 9) and encoder.output_size == 9
    assert VectorEncoder(4, EncoderConfig(dense_units=8, mlp_features_dim=None), torch.Generator()).output_size == 8
