"""Observations, rewards and episode ends of a world model, compared with closed forms."""

from __future__ import annotations

import torch

from rlcore.algorithms.dreamer.dreamer_v3.config import WorldModelConfig
from rlcore.algorithms.dreamer.dreamer_v3.layer_keys import HiddenConfig, RecurrentConfig
from rlcore.algorithms.dreamer.latents import CategoricalLatent
from rlcore.algorithms.dreamer.world_model import WorldModel
from rlcore.functional.scalars import ScalarHead, TwoHot, UnitNormal
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

OBS = {
    "rgb": ArraySpec((8, 8, 3), "uint8", kind="image"),
    "state": ArraySpec((2, 2), "float32"),
    "hand.room": ArraySpec((), "int64", n=3, start=1),  # key of a nested Dict space
}
SPEC = EnvSpec("Some-v0", OBS, ActionSpec("Discrete", (), "int64", (2,), (0,)))
ROWS = {
    "rgb": torch.arange(2 * 3 * 192).remainder(256).to(torch.uint8).view(2, 3, 8, 8, 3),
    "state": torch.linspace(-1e3, 1e3, 24).view(2, 3, 2, 2),
    "hand.room": torch.tensor([[1, 2, 3], [3, 1, 1]]),
}
FEAT = torch.randn(2, 3, 18, generator=torch.Generator().manual_seed(1))


def make_model(number: ScalarHead, ends: bool = True) -> WorldModel:
    config = WorldModelConfig(
        discrete_size=4,
        stochastic_size=3,
        recurrent_model=RecurrentConfig(6, 7),
        transition_model=HiddenConfig(5),
        representation_model=HiddenConfig(5),
    )
    keys, rng = (["rgb"], ["state", "hand.room"]), torch.Generator().manual_seed(0)
    model = WorldModel(config, SPEC, keys, keys, CategoricalLatent(3, 4, 0.01), number, (1.0, 1.0), rng)
    if not ends:
        model.continue_head = None
    return model


def test_world_model_encoder_restores_preprocessed_observation() -> None:
    model = make_model(TwoHot(15))
    preprocessed = model.encoder.preprocess(ROWS, 2)
    assert {key: tuple(part.shape) for key, part in preprocessed.items()} == {
        "rgb": (2, 3, 3, 8, 8),
        "state": (2, 3, 4),
        "hand.room": (2, 3, 3),
    }
    assert preprocessed["rgb"].min() == -0.5 and preprocessed["rgb"].max() == 0.5
    state = ROWS["state"].flatten(2)
    torch.testing.assert_close(preprocessed["state"], state.sign() * (1 + state.abs()).log())
    restored = model.encoder.restore(preprocessed)
    torch.testing.assert_close(restored["state"], ROWS["state"], rtol=1e-4, atol=1e-3)
    assert torch.equal(restored["hand.room"], ROWS["hand.room"].float())
    torch.testing.assert_close(restored["rgb"].float(), ROWS["rgb"].float(), rtol=0, atol=0.01)


def test_world_model_decoder_loss_sums_over_keys() -> None:
    model = make_model(TwoHot(15))
    preprocessed, decoded = model.encoder.preprocess(ROWS, 2), model.decoder(FEAT)
    assert {key: part.shape for key, part in decoded.items()} == {key: part.shape for key, part in preprocessed.items()}
    loss = model.decoder.loss(
        decoded, preprocessed, 2, lambda guess, target, lead: (guess - target).flatten(lead).abs().sum(-1)
    )
    one_by_one = [
        sum((decoded[key][t, n] - preprocessed[key][t, n]).abs().sum() for key in preprocessed)
        for t in range(2)
        for n in range(3)
    ]
    torch.testing.assert_close(loss, torch.stack(one_by_one).view(2, 3))


def test_world_model_decoder_escapes_dot_in_nested_key() -> None:
    decoder = make_model(TwoHot(15)).decoder
    assert {name.rsplit(".", 1)[0] for name, _ in decoder.heads.named_parameters()} == {"of_state", "of_hand%2Eroom"}


def test_world_model_reward_and_continue_losses_are_likelihoods() -> None:
    model, reward = make_model(UnitNormal()), torch.tensor([[0.0, 1.0, -2.0], [3.0, 0.5, 0.0]])
    guess = model.predict_reward(FEAT)
    expected = -torch.distributions.Normal(guess, 1.0).log_prob(reward)
    torch.testing.assert_close(model.reward_loss(FEAT, reward), expected)
    continues = torch.tensor(
        [[1.0, 0.0, 0.99], [0.0, 1.0, 0.5]]
    )  # probabilities; DreamerV1 and V2 multiply them with gamma
    p = model.predict_continue(FEAT).sigmoid()
    torch.testing.assert_close(
        model.continue_loss(FEAT, continues), -(continues * p.log() + (1 - continues) * (1 - p).log())
    )
    assert not make_model(UnitNormal(), ends=False).continue_loss(FEAT, continues).any()
