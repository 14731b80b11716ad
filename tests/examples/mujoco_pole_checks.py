"""Checks of examples/mujoco_pole, each in a process of its own, because mujoco-torch changes functions of torch.

cd examples/mujoco_pole && python -m tests.examples.mujoco_pole_checks moves_as_in_mujoco
"""

from __future__ import annotations

import importlib.resources
import sys
from typing import Any
from unittest import mock

import mujoco
import numpy as np
import torch

from flows.config.compose import compose
from rlcore.conformance import interrupted_equals_uninterrupted
from rlcore.envs.card import environment_card
from rlcore.envs.exact import batched as checks
from rlcore.envs.vector.choose import make_vector_env

WORDS = ["env=batched", "env.id=pole", "env.wrapper._target_=mujoco_pole.MujocoPole", "plugins=[mujoco_pole]"]


def moves_as_in_mujoco() -> None:
    envs: Any = make_vector_env(compose(["exp=ppo", *WORDS])[0].env, num_envs=3, seed=0)
    envs.reset()
    path = importlib.resources.files("mujoco_torch") / "test_data" / "cartpole.xml"
    model = mujoco.MjModel.from_xml_string(path.read_text())
    oracle = [mujoco.MjData(model) for _ in range(3)]
    for data, qpos, qvel in zip(oracle, *envs.env.state.values(), strict=True):
        data.qpos[:], data.qvel[:] = qpos, qvel
    rng, alive = np.random.default_rng(0), np.ones(3, bool)
    for _ in range(25):
        action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        step = envs.step(torch.from_numpy(action))
        for copy in np.flatnonzero(alive):
            data = oracle[copy]
            data.ctrl[:] = action[copy]
            mujoco.mj_step(model, data)
            np.testing.assert_allclose(envs.env.state["qpos"][copy], data.qpos, atol=1e-12)
            np.testing.assert_allclose(envs.env.state["qvel"][copy], data.qvel, atol=1e-12)
            assert bool(step.terminated[copy]) == (abs(data.qpos[1]) > 0.2) and step.reward[copy] == 1
        alive &= ~step.terminated.numpy()


def has_tier_snapshot() -> None:
    with mock.patch.object(checks, "FEW_STEPS", 12):
        assert environment_card(compose(["exp=ppo", *WORDS])[0].env)["tier"] == "snapshot"


def resumes_exactly() -> None:
    small = ["env.num_envs=3", "env.max_episode_steps=6", "algo.rollout_steps=8", "algo.total_steps=200"]
    with mock.patch.object(checks, "FEW_STEPS", 4):
        interrupted_equals_uninterrupted(compose(["exp=ppo", *WORDS, *small])[0])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
