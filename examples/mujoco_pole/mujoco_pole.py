"""Cart with a pole in the simulator mujoco-torch, which computes MuJoCo's physics as tensor operations.

    pip install -e '.[mujoco-torch]'
    shepherd train exp=ppo env=batched plugins=[mujoco_pole] env.wrapper._target_=mujoco_pole.MujocoPole

The model, rewards and limits are those of `mujoco_torch.zoo.cartpole`. A step takes 0.05 s on a CPU for any number of
environments up to a few hundred, so this example is meant for a GPU.
"""

import importlib.resources
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.envs.batched.env import BatchedEnv, Obs, Transition
from rlcore.errors import UserError

try:
    import mujoco

    if not hasattr(mujoco.mjtEnableBit, "mjENBL_MULTICCD"):  # mujoco-torch 0.2 reads it, MuJoCo has removed it
        mujoco.mjtEnableBit.mjENBL_MULTICCD = 1 << 30
    import mujoco_torch
except ImportError as error:
    raise UserError("mujoco_pole: mujoco-torch is not installed; run: pip install -e '.[mujoco-torch]'") from error


class MujocoPole(BatchedEnv):
    """Keep the pole upright with a force on the cart; the reward is 1 per step."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    max_episode_steps = 1000
    capturable = False  # mujoco-torch copies index tensors between devices

    def __init__(self, num_envs: int, device: Any = "cpu") -> None:
        super().__init__(num_envs, device)
        path = importlib.resources.files("mujoco_torch") / "test_data" / "cartpole.xml"
        model = mujoco.MjModel.from_xml_string(path.read_text())
        self.model = mujoco_torch.device_put(model).to(self.device)
        self.data = mujoco_torch.device_put(mujoco.MjData(model)).to(self.device).expand(num_envs)
        self.simulate = torch.vmap(lambda data: mujoco_torch.step(self.model, data, fixed_iterations=True))

    def reset(self, config: Any) -> Obs:
        """Start near the upright position, at rest."""
        qpos, qvel = (self.random.uniform(-0.01, 0.01, 2, dtype=torch.float64) for _ in range(2))
        self.state = {"qpos": qpos, "qvel": qvel}
        return torch.cat([qpos, qvel], 1).float()

    def step(self, action: Tensor) -> Transition:
        """Simulate 0.01 s."""
        data = self.simulate(self.data.clone().replace(**self.state, ctrl=action.double()))
        self.state = {"qpos": data.qpos, "qvel": data.qvel}
        obs = torch.cat([data.qpos, data.qvel], 1).float()
        return obs, self.ones(), data.qpos[:, 1].abs() > 0.2
