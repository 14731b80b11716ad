"""The table of velocity entries, compared with the simulations: entries that depend on velocities only."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rlcore.config.groups import EnvConfig
from rlcore.envs.make import make
from rlcore.envs.velocities import LAYOUTS, MUJOCO
from rlcore.errors import UserError

STEP = {"CartPole": 0.02, "MountainCar": 1.0, "MountainCarContinuous": 1.0}  # seconds; MountainCar has no unit
HERE = [env_id for env_id in LAYOUTS if env_id in gymnasium.registry]


def moved(before: np.ndarray, after: np.ndarray) -> list[int]:
    assert before.shape == after.shape
    return np.flatnonzero(before != after).tolist()


def in_mujoco(env: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Observations of one pose with two sets of generalized velocities."""
    seen = []
    for _ in range(2):
        env.set_state(env.data.qpos.copy(), rng.uniform(-1, 1, env.model.nv))
        seen.append(env._get_obs())
    return seen[0], seen[1]


class Still:
    """A Box2D world in which no time passes."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def Step(self, *arguments: Any) -> None:  # noqa: N802 - as Box2D calls it
        """Nothing moves."""


def in_box2d(env: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Observations of bodies in the same positions with two sets of velocities, without engine or motor forces."""
    env.world, seen = Still(env.world), []
    for _ in range(2):
        for body in env.world.bodies:
            if body.mass > 0:
                body.linearVelocity = rng.uniform(-1, 1, 2).tolist()
                body.angularVelocity = float(rng.uniform(-1, 1))
        action = 0 if isinstance(env.action_space, gymnasium.spaces.Discrete) else np.zeros(env.action_space.shape)
        seen.append(env.step(action)[0])
    return seen[0], seen[1]


def in_classic_control(env: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Observations of one position with two velocities; the first half of the state is positions or angles."""
    seen = []
    for _ in range(2):
        position, velocity = np.array_split(np.array(env.state, np.float64), 2)
        env.state = np.concatenate([position, velocity + rng.uniform(-0.1, 0.1, len(velocity))])
        seen.append(env._get_ob() if hasattr(env, "_get_ob") else env._get_obs())
    return seen[0], seen[1]


@pytest.mark.parametrize("env_id", [i for i in HERE if i.rpartition("-")[0] not in STEP])
@pytest.mark.filterwarnings("ignore:.*out of date.*")
def test_layouts_match_entries_that_depend_on_velocity(env_id: str) -> None:
    env = gymnasium.make(env_id)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    ways = {"Lunar": in_box2d, "Biped": in_box2d, "Acrob": in_classic_control, "Pendu": in_classic_control}
    before, after = ways.get(env_id[:5], in_mujoco)(env.unwrapped, rng)
    size, velocities = LAYOUTS[env_id]
    assert len(before) == size
    still = set(velocities) - {*moved(before, after)}
    assert {*moved(before, after)} <= {*velocities}
    assert len(still) == 6 * (env_id in ("Humanoid-v4", "HumanoidStandup-v4"))  # entries of the fixed world body
    assert all(before[i] == 0 for i in still)
    env.close()


@pytest.mark.parametrize("env_id", [i for i in HERE if i.rpartition("-")[0] in STEP])
@pytest.mark.filterwarnings("ignore:.*out of date.*")
def test_layouts_match_finite_differences_of_positions(env_id: str) -> None:
    """Positions change by the velocity after the step in MountainCar, and before the step in CartPole."""
    env, name = gymnasium.make(env_id), env_id.rpartition("-")[0]
    before, _ = env.reset(seed=3)
    after, *_ = env.step(env.action_space.sample())
    rates = before if name == "CartPole" else after
    size, velocities = LAYOUTS[env_id]
    assert len(before) == size
    for velocity in velocities:
        assert rates[velocity] != 0
        grown = after[velocity - 1] - before[velocity - 1]
        np.testing.assert_allclose(grown, STEP[name] * rates[velocity], atol=1e-7)


def test_layouts_cover_registered_ids() -> None:
    assert {*LAYOUTS} - {*HERE} <= {"LunarLander-v2", "LunarLanderContinuous-v2", "CartPole-v0"}
    assert {*MUJOCO} <= {*HERE}


def test_mask_velocities_refuses_changed_layout() -> None:
    changed = {"exclude_current_positions_from_observation": False}
    with pytest.raises(UserError, match="17 numbers by default, but here they have 18"):
        make(EnvConfig(id="HalfCheetah-v5", mask_velocities=True, wrapper=changed))
