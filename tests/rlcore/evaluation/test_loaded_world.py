"""Loaded world model compared with its RSSM stepped by hand and closed forms of its heads; refused inputs."""

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


def make_model(action: ActionSpec, seed: int = 7, critic: bool = True) -> LoadedWorldModel:
    """Return a small model with every kind of observation and different weights in every layer."""
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


def model_actions(action: ActionSpec, given: np.ndarray) -> torch.Tensor:
    """Convert environment actions to model actions: one-hot from `start`, or the Box scaled to -1 to 1."""
    if action.continuous:
        return torch.from_numpy((given - np.array([0.0, 2.0])) / 2).float()
    return torch.from_numpy(np.eye(3, dtype=np.float32)[given - 1])


def assert_same(found: ModelState, wanted: list[ModelState]) -> None:
    for part, steps in zip(found, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(steps), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_observe_equals_obs_step_per_row(action: ActionSpec) -> None:
    model, (obs, given) = make_model(action), rows(action, 6, 2)
    is_first = np.zeros((6, 2), bool)
    is_first[3, 1] = True  # an episode begins in the second sequence at row 3
    found = model.observe(obs, given, is_first)
    world, taken_actions = model.world, model_actions(action, given)
    noise = world.rssm.noise(Noise(7, "dream"), 6, 2)
    state, wanted = ModelState(*(torch.zeros(2, size) for size in world.rssm.sizes)), list[ModelState]()
    for t in range(6):
        seen = world.encoder(world.encoder.preprocess({key: torch.from_numpy(part[t]) for key, part in obs.items()}, 1))
        opens = torch.tensor([t == 0, t in (0, 3)])
        before = taken_actions[t - 1] if t else torch.zeros_like(taken_actions[0])  # the action before this row
        state = world.rssm.obs_step(seen, before, opens, noise[t], state)
        wanted.append(state)
    assert_same(found, wanted)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_imagine_equals_img_step_per_row(action: ActionSpec) -> None:
    model, (_, given) = make_model(action), rows(action, 4, 3)
    begin = ModelState(*(torch.rand(3, size) for size in model.world.rssm.sizes))
    found, taken = model.imagine(begin, given)
    rng, state, wanted = Noise(7, "dream"), begin, list[ModelState]()
    for taken_actions in model_actions(action, given):
        state = model.world.rssm.img_step(state, taken_actions, model.world.rssm.noise(rng, 3))
        wanted.append(state)
    assert_same(found, wanted)
    np.testing.assert_array_equal(taken, given)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "continuous"])
def test_imagine_with_actor_equals_imagine_with_its_actions(action: ActionSpec) -> None:
    begin = ModelState(*(torch.rand(3, size) for size in make_model(action).world.rssm.sizes))
    states, taken = make_model(action).imagine(begin, steps=5)
    assert taken.shape == (5, 3, *action.shape) and taken.dtype == np.dtype(action.dtype)
    again, _ = make_model(action).imagine(begin, taken)
    assert_same(states, [ModelState(*(part[t] for part in again)) for t in range(5)])
    before = ModelState(
        *(torch.cat([first.unsqueeze(0), then[:-1]]) for first, then in zip(begin, states, strict=True))
    )
    model = make_model(action)
    likeliest = model.agent.to_env(model.agent.actor.policy(before.feat).mode().flatten(0, 1)).unflatten(0, (5, 3))
    np.testing.assert_allclose(taken, likeliest.numpy(), rtol=1e-5, atol=1e-6)
    sampled = model.imagine(begin, steps=40, greedy=False)[1]
    assert not np.array_equal(sampled, make_model(action).imagine(begin, steps=40)[1])


def test_decode_returns_environment_form_and_units() -> None:
    model = make_model(DISCRETE)
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
    decoded = model.decode(ModelState(*(torch.rand(2, 3, size) for size in world.rssm.sizes)))
    assert decoded.obs["rgb"].dtype == np.uint8 and decoded.obs["rgb"].shape == (2, 3, 16, 16, 3)
    assert np.unique(decoded.obs["rgb"].reshape(-1, 3), axis=0).tolist() == [[51, 128, 255]]  # 0.2, 0.5 and 1.4 of 255
    assert decoded.obs["grey"].shape == (2, 3, 1, 16, 16) and set(decoded.obs["grey"].flat) == {2.5}
    # symexp: 0, 3 - 1, -(2 - 1), e - 1
    np.testing.assert_allclose(decoded.obs["speed"][1, 2], [[0, 2], [-1, math.e - 1]], rtol=1e-6)
    assert decoded.obs["room"].tolist() == [[7] * 3] * 2
    np.testing.assert_allclose(decoded.continues, np.full((2, 3), 0.75), rtol=1e-6)
    np.testing.assert_allclose(decoded.reward, np.full((2, 3), math.exp(20) - 1), rtol=1e-4)
    assert decoded.value is not None and decoded.value.tolist() == [[0.0] * 3] * 2
    assert (
        make_model(DISCRETE, critic=False).decode(ModelState(*(torch.rand(2, n) for n in world.rssm.sizes))).value
        is None
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
def test_observe_refuses_wrong_input(change: dict[str, Any], words: str) -> None:
    obs, action = rows(DISCRETE, 6, 2)
    changed = {key: part for key, part in (obs | {"action": action} | change).items() if part is not None}
    with pytest.raises(UserError, match=words):
        make_model(DISCRETE).observe(changed, changed["action"])


def test_load_world_model_refuses_algorithm_without_world(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "ppo", weights=1)
    with pytest.raises(
        UserError, match="algo.name=ppo: has no world model; algorithms with a world model: .*dreamer_v3"
    ):
        load_world_model(run.path)


def test_load_world_model_has_weights_of_checkpoint(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "dreamer", weights=4, algo="dreamer_v3")
    model = load_world_model(run.path)
    wanted = model.agent.state_dict()
    module = ALGORITHMS["dreamer_v3"]
    config = build(module.Config, run.read_config()["algo"], "algo.")
    state = module.Agent(config, model.spec, "auto", torch.Generator().manual_seed(4)).state_dict()
    assert all(torch.equal(weight, wanted[name]) for name, weight in state.items())
