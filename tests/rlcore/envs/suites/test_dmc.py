"""DeepMind Control: observations and images of the tasks, seeds, episode ends, and resume."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from flows.config.compose import compose
from rlcore.envs.card import environment_card
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.envs.suites.dmc import TASKS
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.wrappers import bare_env
from rlcore.errors import UserError
from tests.rlcore.envs.vector.test_resume import as_bytes, through_disk
from tests.soaking import always, heavy

pytestmark = heavy

pytest.importorskip("dm_control")
if not os.environ.get("MUJOCO_GL"):  # read where dm-control is imported
    os.environ["MUJOCO_GL"] = "egl"


def make_env(env_id: str = "cartpole_balance", screen_size: int | None = 64, **wrapper: Any) -> Any:
    return make(EnvSettings(env_id, wrapper=wrapper, screen_size=screen_size))


def test_tasks_match_dm_control() -> None:
    from dm_control import suite

    assert sorted((domain, task) for domain, tasks in TASKS.items() for task in tasks.split()) == sorted(
        suite.ALL_TASKS
    )


@always
@pytest.mark.parametrize(
    ("env_id", "share"),
    [("cartpole_balance", 1.0), ("quadruped_walk", None), ("reacher_easy", 1.0), ("lqr_lqr_2_1", 1.0)],
)
def test_episode_matches_dm_control(env_id: str, share: float | None) -> None:
    """The oracle is dm_control. Actions of quadruped have the bounds 0.8, 1 and 1.1, those of LQR none."""
    from dm_control import suite

    domain, _, task = env_id.partition("_")
    oracle, rng = suite.load(domain, task, {"random": 0}), np.random.default_rng(0)
    oracle.task._random = np.random.RandomState(7)
    with closing(make_env(env_id)) as env:
        obs, now = env.reset(seed=7)[0], oracle.reset()
        for _ in range(20):
            numbers = np.concatenate([np.ravel(part) for part in now.observation.values()])
            assert obs.keys() == {"state"} and (obs["state"] == numbers.astype(np.float32)).all()
            action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
            obs, reward, terminated, truncated, _ = env.step(action)
            bounds = oracle.action_spec()
            scale = bounds.maximum if share is None else share  # symmetric: minimum is -maximum but for 1.1
            low = bounds.minimum if share is None else -share
            now = oracle.step(low + (action.astype(np.float64) + 1) / 2 * (scale - low))
            assert (reward, terminated, truncated) == (now.reward, False, False)


def test_from_pixels_matches_camera_with_channels_first() -> None:
    with closing(make_env(from_pixels=True, from_vectors=False, screen_size=48)) as env:
        obs, _ = env.reset(seed=1)
        part = spec_of(env).obs["rgb"]
        assert (part.kind, part.shape, part.channels_first) == ("image", (3, 48, 48), True)
        physics: Any = bare_env(env)
        picture = physics.task.physics.render(48, 48, 0)
        assert obs.keys() == {"rgb"} and (obs["rgb"].transpose(1, 2, 0) == picture).all() and picture.std() > 10


def test_fast_rendering_is_close_to_default_rendering() -> None:
    pictures = []
    for fast in (False, True):
        with closing(make_env(from_pixels=True, fast_rendering=fast)) as env:
            pictures.append(env.reset(seed=1)[0]["rgb"].astype(float))
    difference = np.abs(pictures[0] - pictures[1]).mean()
    assert 0 < difference < 12


def test_episode_ends_at_time_limit_or_zero_discount() -> None:
    with closing(make_env("pendulum_swingup")) as env:
        env.reset(seed=0)
        ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(1000)]
        assert ends == [(False, False)] * 999 + [(False, True)]
        env.reset(seed=0)
        task: Any = bare_env(env).task  # pyright: ignore[reportAttributeAccessIssue]
        task.task.get_termination = lambda physics: 0.0
        assert env.step(np.zeros(1, np.float32))[2:4] == (True, False)


def test_reset_seed_determines_following_episodes() -> None:
    starts = []
    for _ in range(2):
        with closing(make_env()) as env:
            starts.append([env.reset(seed=seed)[0]["state"].tolist() for seed in (3, None, None, 3)])
    (first, second, third, again), other = starts
    assert starts[0] == other and first == again and first != second != third


@pytest.mark.parametrize("pixels", [False, True])
def test_dmc_resumes_by_replay_bit_for_bit(pixels: bool) -> None:
    wrapper = {"from_pixels": pixels, "fast_rendering": True}
    settings = EnvSettings("cartpole_swingup", wrapper=wrapper, screen_size=36, action_repeat=2)
    if not pixels:
        card = environment_card(settings)
        assert (card["tier"], card["deterministic"]) == ("replay", True)
        assert card["packages"].keys() >= {"dm-control"}
    envs, other = (make_vector_env(settings, num_envs=2, seed=1, tier="replay") for _ in range(2))
    with closing(envs), closing(other):
        envs.reset()
        for _ in range(6):
            envs.step(np.full((2, 1), 0.3))
        other.load_state_dict(through_disk(envs.state_dict()))
        for _ in range(4):
            assert as_bytes(envs.step(np.ones((2, 1)))) == as_bytes(other.step(np.ones((2, 1))))


@pytest.mark.parametrize(
    ("overrides", "env_id", "wrapper"),
    [
        (["env.wrapper.domain_name=cheetah", "env.wrapper.task_name=run"], "cheetah_run", {"from_vectors": True}),
        (["env.id=hopper_hop"], "hopper_hop", {"from_vectors": True}),
        (["env.wrapper._target_=sheeprl.envs.dmc.DMCWrapper", "env.wrapper.seed=null"], "walker_walk", {}),
        (["env.max_episode_steps=-1"], "walker_walk", {}),
    ],
)
def test_dmc_accepts_keys_of_sheeprl(overrides: list[str], env_id: str, wrapper: dict[str, Any]) -> None:
    config, _ = compose(["exp=sac", "env=dmc", *overrides])
    assert config.env.id == env_id and config.env.wrapper.items() >= wrapper.items()
    assert config.env.max_episode_steps == (None if "=-1" in overrides[0] else 1000)
    with closing(make(EnvSettings(env_id, wrapper={**config.env.wrapper, "from_pixels": False}))) as env:
        assert env.reset(seed=0)[0].keys() == {"state"}


@always
def test_make_refuses_invalid_dmc_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="from_pixels=false and from_vectors=false: no observation remains"):
        make_env(from_vectors=False)
    with pytest.raises(
        UserError, match="env.wrapper.from_pixel=True: cartpole_balance has no argument 'from_pixel'.*from_pixels"
    ):
        make_env(from_pixel=True)
    monkeypatch.setitem(sys.modules, "dm_control", None)
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(UserError, match=r"pip install -e '.\[dmc\]'"):
        make_env()
