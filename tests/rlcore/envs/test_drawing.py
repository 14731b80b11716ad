"""Rendered images as observations: names, equality with Gymnasium's wrapper, and exact resume."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AddRenderObservation

from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.envs.card import environment_card
from rlcore.envs.drawing import drawn_shape
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import UserError
from rlcore.nn.network_keys import KeysConfig
from rlcore.run_config import build_config
from tests.probes.world import Config
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.rlcore.envs.vector.test_resume import as_bytes, through_disk
from tests.soaking import heavy

pytestmark = heavy


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def run_config(env_id="CartPole-v1", vectors=(), images=(), **env):
    keys = {"mlp_keys": KeysConfig(tuple(vectors)), "cnn_keys": KeysConfig(tuple(images))}
    run = RunConfig(algo=Config(name="world", total_steps=1, **keys), env=EnvConfig(id=env_id, **env))
    return run.env


def built_config(env_id="CartPole-v1", vectors=(), images=(), **env):
    keys = {"mlp_keys": {"encoder": list(vectors)}, "cnn_keys": {"encoder": list(images)}}
    return build_config({"algo": {"name": "ppo", "total_steps": 64, **keys}, "env": {"id": env_id, **env}}).env


@pytest.mark.parametrize("build", [run_config, built_config])
@pytest.mark.parametrize(
    ("vectors", "images", "options", "names"),
    [
        (["state"], [], {}, ("state", None)),
        (["vector"], ["pixels"], {}, ("vector", "pixels")),
        (["reward", "numbers"], ["depth", "rgb"], {"reward_as_observation": True}, ("numbers", "rgb")),
        ([], ["rgb"], {}, ("state", "rgb")),
        (["mine"], ["mine2"], {"vector_key": "a", "image_key": "b"}, ("a", "b")),
    ],
)
def test_unnamed_observations_take_keys_of_algorithm(vectors, images, options, names, build):
    env = build(vectors=vectors, images=images, **options)
    assert (env.vector_key, env.image_key) == names


def test_image_key_matches_gymnasium_add_render_observation():
    bare = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    theirs = AddRenderObservation(bare, render_only=False, render_key="rgb", obs_key="vector")
    env = make(run_config(vectors=["vector"], images=["rgb"], screen_size=None))
    assert env.observation_space == theirs.observation_space
    with closing(env), closing(theirs):
        mine, other = env.reset(seed=3)[0], theirs.reset(seed=3)[0]
        for action in (0, 1, 1):
            assert sorted(mine) == sorted(other)
            assert all((mine[key] == other[key]).all() for key in other)
            mine, other = env.step(action)[0], theirs.step(action)[0]


def test_make_renders_only_missing_requested_images():
    for settings, keys in (
        (run_config(vectors=["state"]), ["state"]),
        (run_config("Probe/Camera-v0", images=["rgb"]), ["arm", "camera"]),
        (run_config(images=["state"]), ["state"]),
    ):
        with closing(make(settings)) as env:
            assert sorted(spec_of(env).obs) == keys


def test_image_key_renames_bare_image_observation():
    with closing(make(EnvSettings("CarRacing-v3", image_key="road"))) as env:
        assert {key: part.shape for key, part in spec_of(env).obs.items()} == {"road": (64, 64, 3)}


def test_make_refuses_image_key_without_render():
    with pytest.raises(
        UserError, match=r"algo.cnn_keys.encoder=\[rgb\]: Probe/Counter-v0 has no image.*set algo.cnn_keys.encoder=\[\]"
    ):
        make(run_config("Probe/Counter-v0", images=["rgb"]))


def test_mask_velocities_applies_to_renamed_vector_key():
    with closing(make(run_config(vectors=["vector"], mask_velocities=True))) as env:
        assert (env.reset(seed=3)[0]["vector"][[1, 3]] == 0).all()


@pytest.mark.parametrize(("env_id", "tier"), [("CartPole-v1", "snapshot"), ("LunarLander-v3", "replay")])
def test_rendered_environment_resumes_with_at_most_one_render(env_id, tier, monkeypatch):
    settings = EnvSettings(env_id, image_key="rgb", grayscale=True)
    assert environment_card(settings)["tier"] == tier
    envs, other = (make_vector_env(settings, num_envs=1, seed=1, tier=tier) for _ in range(2))
    with closing(envs), closing(other):
        envs.reset()
        for _ in range(6):
            envs.step(np.zeros(1, int))
        renders, render = [], gymnasium.Wrapper.render
        monkeypatch.setattr(gymnasium.Wrapper, "render", lambda self: renders.append(type(self)) or render(self))
        other.load_state_dict(through_disk(envs.state_dict()))
        layers = len(set(renders))
        assert len(renders) == (layers if tier == "replay" else 0)
        for _ in range(12):
            assert as_bytes(envs.step(np.ones(1, int))) == as_bytes(other.step(np.ones(1, int)))


def test_drawn_shape_is_cached(monkeypatch):
    with closing(make(EnvSettings("CartPole-v1", image_key="rgb"))):
        pass
    monkeypatch.setattr("rlcore.envs.drawing.open_env", None)
    from rlcore.envs.suites.registry import suite_with

    suite = suite_with("CartPole-v1")
    assert suite is not None
    assert drawn_shape(suite, "CartPole-v1", {}, "rgb") == (400, 600, 3)
