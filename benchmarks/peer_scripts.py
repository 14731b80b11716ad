"""Source text of the scripts that run in the peers' Python environment; `benchmarks/peers.py` writes them to files."""

# Train Stable-Baselines3 or sb3-contrib. Arguments: class, policy, environment, number of environments, and options of
# the class; an option that is a list of one number decreases linearly to 0. Prints the mean return of the last training
# episodes, before wrappers.
SB3 = """
import importlib, sys, json, gymnasium, torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize
import benchmarks_slow  # registers Slow-v0
import benchmarks_atari  # registers the games
torch.set_num_threads(1)
module, name, policy, env_id, count, steps, seed, vector, normalize, options, saved = json.loads(sys.argv[1])
if __name__ == "__main__":
    kind = {"serial": DummyVecEnv, "subprocess": SubprocVecEnv, "pixels": DummyVecEnv}[vector]
    wrapper = benchmarks_atari.preprocess if vector == "pixels" else None
    envs = make_vec_env(env_id, count, seed=seed, vec_env_cls=kind, wrapper_class=wrapper)
    envs = VecFrameStack(envs, 4) if vector == "pixels" else envs
    if normalize:
        envs = VecNormalize(envs)
    algorithm = getattr(importlib.import_module(module), name)
    falling = {key: lambda left, first=of[0]: left * first for key, of in options.items() if isinstance(of, list)}
    model = algorithm(policy, envs, device="cpu", seed=seed, **options | falling)
    model.learn(steps)
    print("last episodes:", sum(episode["r"] for episode in model.ep_info_buffer) / max(1, len(model.ep_info_buffer)))
    model.save(saved)
    if normalize:
        envs.save(saved + ".pkl")
    envs.close()
"""
SB3_EVALUATE = """
import importlib, sys, json
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize
module, name, env_id, saved, normalize, episodes = json.loads(sys.argv[1])
envs = make_vec_env(env_id, 1, seed=10**6)
if normalize:
    envs = VecNormalize.load(saved + ".pkl", envs)
    envs.training = envs.norm_reward = False
print(evaluate_policy(getattr(importlib.import_module(module), name).load(saved), envs, episodes, warn=False)[0])
"""
# Evaluate SheepRL's agent with SheepRL's test function, on other seeds.
SHEEPRL_EVALUATE = """
import contextlib, io, importlib, json, sys
from pathlib import Path
import yaml
from lightning import Fabric
from sheeprl.utils.env import make_env
from sheeprl.utils.utils import dotdict
folder, episodes = json.loads(sys.argv[1])
(saved,) = Path(folder).rglob("*.ckpt")
config = dotdict(yaml.safe_load((saved.parents[1] / "config.yaml").read_text()))
algo = importlib.import_module(f"sheeprl.algos.{config.algo.name}.evaluate")
fabric = Fabric(accelerator="cpu", devices=1)
env = make_env(config, 0, 0, folder, "test", vector_env_idx=0)()
continuous = hasattr(env.action_space, "high")
sizes = env.action_space.shape if continuous else [env.action_space.n]
agent = algo.build_agent(fabric, sizes, continuous, config, env.observation_space, fabric.load(saved)["agent"])[1]
output = io.StringIO()
with contextlib.redirect_stdout(output):
    for episode in range(episodes):
        config.seed = 10**6 + episode
        algo.test(agent, fabric, config, folder)
rewards = [float(line.split()[-1].strip("[]")) for line in output.getvalue().splitlines() if "Reward" in line]
assert len(rewards) == episodes
print(sum(rewards) / episodes)
"""
# CPU seconds to step one environment with random actions, without imports.
SIMULATOR = """
import sys, json, time, gymnasium
import benchmarks_atari, benchmarks_control
env_id, steps = json.loads(sys.argv[1])
env = gymnasium.make(env_id) if env_id in gymnasium.registry else benchmarks_control.Control(*env_id.split("_", 1))
if hasattr(env.unwrapped, "ale"):
    env = benchmarks_atari.Emulator(env.unwrapped)
env.action_space.seed(0)
actions = [env.action_space.sample() for _ in range(steps)]
env.reset(seed=0)
began = time.process_time()
for action in actions:
    *_, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        env.reset()
print(time.process_time() - began)
"""
SLOW = """
import time, gymnasium, numpy as np
class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed); self.t = 0
        return np.zeros(4, np.float32), {}
    def step(self, action):
        self.t += 1
        time.sleep(1e-3)
        return np.full(4, self.t % 7 / 7, np.float32), 1.0, False, self.t == 200, {}
gymnasium.register("Slow-v0", entry_point=Slow)
"""
# Preprocessing of games, and the emulator without rendering. Importable also if the games are not installed.
ATARI = """
import gymnasium
try:
    import ale_py
except ImportError:
    pass
def preprocess(env):
    return gymnasium.wrappers.AtariPreprocessing(env, grayscale_newaxis=True)
class Emulator(gymnasium.Env):
    def __init__(self, game):
        self.ale, self.buttons, self.action_space = game.ale, game._action_set, game.action_space
    def reset(self, *, seed=None, options=None):
        self.ale.reset_game()
    def step(self, action):
        for _ in range(4):
            self.ale.act(self.buttons[action], 1.0)
        return None, 0.0, self.ale.game_over(), False, {}
"""
# A task of DeepMind Control without wrappers: physics, and an image of 64 x 64 after every step.
CONTROL = """
import gymnasium
class Control(gymnasium.Env):
    def __init__(self, domain, task):
        from rlcore.envs.suites.headless import headless_rendering
        headless_rendering()
        from dm_control import suite
        self.task = suite.load(domain, task)
        bounds = self.task.action_spec()
        self.action_space = gymnasium.spaces.Box(bounds.minimum, bounds.maximum)
    def reset(self, *, seed=None, options=None):
        self.task.reset()
        self.task.physics.render(64, 64, 0)
    def step(self, action):
        now = self.task.step(action)
        self.task.physics.render(64, 64, 0)
        return None, 0.0, False, now.last(), {}
"""

FILES = {
    "benchmarks_atari": ATARI,
    "benchmarks_control": CONTROL,
    "sb3": SB3,
    "sb3_evaluate": SB3_EVALUATE,
    "sheeprl_evaluate": SHEEPRL_EVALUATE,
    "simulator": SIMULATOR,
    "benchmarks_slow": SLOW,
}
