"""A loaded world model against its RSSM stepped by hand, closed forms of its heads, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows import load_world_model
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.config.build import build
from rlcore.config.schema import defaults
from rlcore.errors import UserError
from rlcore.evaluation.loaded_world import LoadedWorldModel
from rlcore.functional.noise import Noise
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from tests.flows.synthetic_runs import checkpointed_run
from tests.runs import SMALL_DREAMER

DISCRETE = ActionSpec("Discrete", (), "int64", (3,), (1,))
BOX = ActionSpec("Box", (2,), "float32", low=(-2.0, 0.0), high=(2.0, 4.0))
OBS = {
    "rgb": ArraySpec((16, 16, 3), "uint8", kind="image"),
    "grey": ArraySpec((1, 16, 16), "float32", kind="image"),
    "speed": ArraySpec((2, 2), "float32"),
    "room": ArraySpec((), "int64", n=4, start=5),
}


def loaded(action: ActionSpec, seed: int = 7, critic: bool = True) -> LoadedWorldModel:
    """A small model of every kind of observation, with weights of its own in every layer."""
    spec = EnvSpec("Some-v0", OBS, action)
    keys = {"mlp_keys": {"encoder": ["speed", "room"]}, "cnn_keys": {"encoder": ["rgb", "grey"]}}
    module = ALGORITHMS["dreamer_v3"]
    settings: dict[str, Any] = defaults(module.Config) | {"name": "dreamer_v3", "total_steps": 5_000}
    config = build(module.Config, settings | SMALL_DREAMER | keys, "algo.")
    agent = module.Agent(config, spec, "auto", torch.Generator().manual_seed(1))
    parts = {"agent": agent.state_dict()}
    if critic:
        critic = Dense(agent.world.feat_size, config.critic.layers, torch.Generator(), config.critic.bins)
        parts["critic"] = critic.state_dict()
    with torch.no_grad():
        for state in parts.values():
            for weight in state.values():
                weight.uniform_(-0.6, 0.6, generator=torch.Generator().manual_seed(2))
    plain = settings | SMALL_DREAMER | keys
    description = {"algo": plain, "distribution": "auto", "spec": spec.to_json()}
    return LoadedWorldModel(json.loads(json.dumps(description, default=str)), parts, seed)


def rows(action: ActionSpec, length: int, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(3)
    obs = {
        "rgb": rng.integers(256, size=(length, count, 16, 16, 3)).astype(np.uint8),
        "grey": rng.normal(size=(length, count, 1, 16, 16)).astype(np.float32),
        "speed": rng.normal(size=(length, count, 2, 2)).astype(np.float32),
        "room": rng.integers(5, 9, size=(length, count)),
    }
    if action.continuous:
        return obs, rng.uniform((-2, 0), (2, 4), (length, count, 2)).astype(np.float32)
    return obs, rng.integers(1, 4, size=(length, count))


def as_said(action: ActionSpec, given: np.ndarray) -> torch.Tensor:
    """Actions of the environment as the model takes them, by hand: one-hot from `start`, or the Box as -1 to 1."""
    if action.continuous:
        return torch.from_numpy((given - np.array([0.0, 2.0])) / 2).float()
    return torch.from_numpy(np.eye(3, dtype=np.float32)[given - 1])


def assert_same(found: ModelState, wanted: list[ModelState]) -> None:
    for part, steps in zip(found, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(steps), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_states_of_what_was_seen_are_those_of_row_by_row(action: ActionSpec) -> None:
    model, (obs, given) = loaded(action), rows(action, 6, 2)
    is_first = np.zeros((6, 2), bool)
    is_first[3, 1] = True  # an episode opens in the second sequence, at row 3
    found = model.observe(obs, given, is_first)
    world, said = model.world, as_said(action, given)
    noise = world.rssm.noise(Noise(7, "dream"), 6, 2)
    state, wanted = ModelState(*(torch.zeros(2, size) for size in world.rssm.sizes)), list[ModelState]()
    for t in range(6):
        seen = world.encoder(world.encoder.preprocess({key: torch.from_numpy(part[t]) for key, part in obs.items()}, 1))
        opens = torch.tensor([t == 0, t in (0, 3)])
        before = said[t - 1] if t else torch.zeros_like(said[0])  # what was done before this row
        state = world.rssm.obs_step(seen, before, opens, noise[t], state)
        wanted.append(state)
    assert_same(found, wanted)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_what_follows_is_the_prior_stepped_by_hand(action: ActionSpec) -> None:
    model, (_, given) = loaded(action), rows(action, 4, 3)
    begin = ModelState(*(torch.rand(3, size) for size in model.world.rssm.sizes))
    found, taken = model.imagine(begin, given)
    rng, state, wanted = Noise(7, "dream"), begin, list[ModelState]()
    for said in as_said(action, given):
        state = model.world.rssm.img_step(state, said, model.world.rssm.noise(rng, 3))
        wanted.append(state)
    assert_same(found, wanted)
    np.testing.assert_array_equal(taken, given)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_the_actor_dreams_as_it_would_with_its_own_actions_given(action: ActionSpec) -> None:
    begin = ModelState(*(torch.rand(3, size) for size in loaded(action).world.rssm.sizes))
    states, taken = loaded(action).imagine(begin, steps=5)
    assert taken.shape == (5, 3, *action.shape) and taken.dtype == np.dtype(action.dtype)
    again, _ = loaded(action).imagine(begin, taken)
    assert_same(states, [ModelState(*(part[t] for part in again)) for t in range(5)])
    before = ModelState(
        *(torch.cat([first.unsqueeze(0), then[:-1]]) for first, then in zip(begin, states, strict=True))
    )
    model = loaded(action)
    likeliest = model.agent.to_env(model.agent.actor.policy(before.feat).mode().flatten(0, 1)).unflatten(0, (5, 3))
    np.testing.assert_allclose(taken, likeliest.numpy(), rtol=1e-5, atol=1e-6)
    sampled = model.imagine(begin, steps=40, greedy=False)[1]
    assert not np.array_equal(sampled, loaded(action).imagine(begin, steps=40)[1])


def test_what_it_says_of_states_is_in_the_environments_form_and_units() -> None:
    model = loaded(DISCRETE)
    world = model.world
    with torch.no_grad():
        for head in (
            world.decoder.cnn.layers[-1],
            world.continue_head.output,
            world.reward.output,
            model._critic.output,
        ):
            head.weight.zero_()
            head.bias.zero_()
        for head in world.decoder.heads.values():
            head.weight.zero_()
        # Channels of both images: rgb at 0.2, 0.5 and beyond white, grey (floats, as they are) at 2.5.
        world.decoder.cnn.layers[-1].bias.copy_(torch.tensor([-0.3, 0.0, 0.9, 2.5]))
        world.decoder.heads["of_speed"].bias.copy_(torch.tensor([0.0, math.log(3), -math.log(2), 1.0]))
        world.decoder.heads["of_room"].bias.copy_(torch.tensor([0.0, 0.1, 0.3, 0.2]))
        world.continue_head.output.bias.fill_(math.log(3))
        world.reward.output.bias[:] = torch.linspace(0, 400, 15)  # all in the uppermost bin, 20 in symlog space
    told = model.decode(ModelState(*(torch.rand(2, 3, size) for size in world.rssm.sizes)))
    assert told.obs["rgb"].dtype == np.uint8 and told.obs["rgb"].shape == (2, 3, 16, 16, 3)
    assert np.unique(told.obs["rgb"].reshape(-1, 3), axis=0).tolist() == [[51, 128, 255]]  # 0.2, 0.5 and 1.4 of 255
    assert told.obs["grey"].shape == (2, 3, 1, 16, 16) and set(told.obs["grey"].flat) == {2.5}
    # symexp: 0, 3 - 1, -(2 - 1), e - 1
    np.testing.assert_allclose(told.obs["speed"][1, 2], [[0, 2], [-1, math.e - 1]], rtol=1e-6)
    assert told.obs["room"].tolist() == [[7] * 3] * 2
    np.testing.assert_allclose(told.continues, np.full((2, 3), 0.75), rtol=1e-6)
    np.testing.assert_allclose(told.reward, np.full((2, 3), math.exp(20) - 1), rtol=1e-4)
    assert told.value is not None and told.value.tolist() == [[0.0] * 3] * 2
    assert (
        loaded(DISCRETE, critic=False).decode(ModelState(*(torch.rand(2, n) for n in world.rssm.sizes))).value is None
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rgb": None}, "obs: key 'rgb' is missing; expected rgb, grey, speed, room"),
        ({"speed": np.zeros((6, 2, 3))}, r"obs 'speed': expected \[T, B, 2, 2\], got \(6, 2, 3\)"),
        (
            {"action": np.zeros((5, 2))},
            r"action: expected \(6, 2\), got \(5, 2\): actions of this environment are scalars",
        ),
    ],
)
def test_a_mistake_is_told_in_a_sentence(change: dict[str, Any], words: str) -> None:
    obs, action = rows(DISCRETE, 6, 2)
    changed = {key: part for key, part in (obs | {"action": action} | change).items() if part is not None}
    with pytest.raises(UserError, match=words):
        loaded(DISCRETE).observe(changed, changed["action"])


def test_an_algorithm_without_a_world_is_refused_in_a_sentence(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "ppo", weights=1)
    with pytest.raises(
        UserError, match="algo.name=ppo: has no world model; algorithms with a world model: .*dreamer_v3"
    ):
        load_world_model(run.path)


def test_the_model_of_a_run_is_its_checkpoints(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "dreamer", weights=4, algo="dreamer_v3")
    model = load_world_model(run.path)
    wanted = model.agent.state_dict()
    module = ALGORITHMS["dreamer_v3"]
    config = build(module.Config, run.read_config()["algo"], "algo.")
    made = module.Agent(config, model.spec, "auto", torch.Generator().manual_seed(4)).state_dict()
    assert all(torch.equal(weight, wanted[name]) for name, weight in made.items())
