"""Image observations: kind, size, colors and frame stack."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest
from gymnasium import spaces

from rlcore.envs.images import luminance, resize
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import kind_of, spec_of
from rlcore.errors import UserError
from rlcore.spec import EnvSpec, Window
from tests.rlcore.envs import probe_envs  # noqa: F401  registers Probe/Spaces-v0

GOALS = {"observation": spaces.Box(-1, 1, (2,)), "achieved_goal": spaces.Box(-1, 1, (1,))}


@pytest.mark.parametrize(
    ("key", "space", "kind"),
    [
        ("rgb", spaces.Box(0, 255, (64, 64, 3), np.uint8), "image"),
        ("rgb", spaces.Box(0, 255, (4, 3, 64, 64), np.uint8), "image"),
        ("depth", spaces.Box(0, 1, (64, 64, 1), np.float32), "image"),
        ("board", spaces.Box(0, 255, (8, 8), np.uint8), "vector"),
        ("field", spaces.Box(-1, 1, (8, 8, 3), np.float32), "vector"),
        ("action_mask", spaces.MultiBinary(4), "mask"),
        ("mask_action_type", spaces.Box(0, 1, (4,), np.bool_), "mask"),
        ("mask", spaces.Box(0, 1, (3,), np.int8), "mask"),
        ("mask", spaces.Box(0, 5, (3,), np.int8), "vector"),
        ("other", spaces.MultiBinary(4), "vector"),
        ("mask", spaces.Discrete(2), "vector"),
    ],
)
def test_kind_of_observation_follows_key_and_space(key, space, kind):
    assert kind_of(key, space) == kind


def spaces_env(observation, **settings):
    return make(EnvSettings("Probe/Spaces-v0", {"observation": observation}, **settings))


def test_image_key_adds_channel_to_gray_image():
    plane, board = spaces.Box(0, 255, (40, 50), np.uint8), spaces.Box(0, 2, (8, 8), np.uint8)
    for space, key in ((plane, "rgb"), (spaces.Dict({"eye": plane, "board": board}), "eye")):
        with closing(spaces_env(space)) as env:
            assert {part.kind for part in spec_of(env).obs.values()} == {"vector"}
        with closing(spaces_env(space, screen_size=20, frame_stack=2, image_key=key)) as env:
            obs, _ = env.reset(seed=0)
            part = spec_of(env).obs[key]
            assert (part.kind, part.shape, part.window) == ("image", (20, 20, 1), Window(2, 1))
            assert env.observation_space.contains(obs) and env.observation_space.contains(env.step(0)[0])
            assert "board" not in obs or spec_of(env).obs["board"].kind == "vector"


def test_goal_kind_requires_both_goal_keys():
    both = spaces.Dict(GOALS | {"desired_goal": spaces.Box(-1, 1, (1,))})
    for space, kinds in ((both, ["goal", "goal", "vector"]), (spaces.Dict(GOALS), ["vector", "vector"])):
        with closing(spaces_env(space)) as env:
            assert [part.kind for part in spec_of(env).obs.values()] == kinds


@pytest.mark.parametrize("first", [True, False])
def test_image_settings_define_shape_and_window(first):
    shape = (3, 96, 80) if first else (96, 80, 3)
    image = spaces.Box(0, 255, shape, np.uint8)
    settings = {"screen_size": 48, "grayscale": True, "frame_stack": 4, "frame_stack_dilation": 2}
    with closing(spaces_env(spaces.Dict({"rgb": image, "v": spaces.Box(-1, 1, (2,))}), **settings)) as env:
        spec, (obs, _) = spec_of(env), env.reset(seed=1)
        part = spec.obs["rgb"]
        assert part.shape == obs["rgb"].shape == ((1, 48, 48) if first else (48, 48, 1))
        assert (part.kind, part.window, part.channels) == ("image", Window(4, 2), 4)
        assert obs["rgb"].dtype == np.uint8 and env.observation_space.contains(obs)
        assert spec.obs["v"].window is None
        assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_bare_image_keeps_size_without_screen_size():
    with closing(spaces_env(spaces.Box(0, 255, (50, 40, 3), np.uint8), screen_size=None)) as env:
        assert {key: part.shape for key, part in spec_of(env).obs.items()} == {"rgb": (50, 40, 3)}


def test_resize_averages_area_of_pixel():
    planes = np.random.default_rng(0).integers(0, 256, (3, 96, 128), np.uint8)
    areas = planes.reshape(3, 32, 3, 32, 4).astype(np.float64).mean((2, 4))
    assert np.abs(resize(planes, 32) - areas).max() <= 1.0  # Pillow rounds after each direction
    floats = resize(planes.astype(np.float32) / 255, 32)
    np.testing.assert_allclose(floats, areas / 255, atol=1e-5)


def test_luminance_matches_standard_weights():
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [10, 20, 30]], np.uint8)
    # 0.299·255 = 76.2, 0.587·255 = 149.7, 0.114·255 = 29.1; 2.99 + 11.74 + 3.42 = 18.15.
    expected = [76, 150, 29, 255, 18]
    assert luminance(colours.T[:, None, :]).tolist() == [[expected]]
    exact = luminance(colours.T[:, None, :].astype(np.float64))
    np.testing.assert_allclose(exact[0, 0], [76.245, 149.685, 29.07, 255, 18.15])


def test_grayscale_refuses_two_channel_image():
    with pytest.raises(UserError, match="env.grayscale=true: image 'rgb' has 2 channels"):
        spaces_env(spaces.Box(0, 255, (50, 50, 2), np.uint8), grayscale=True)
