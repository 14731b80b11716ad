"""What Stable-Baselines3 reaches with the settings of exp=ppo_mujoco: a gate where nobody has published a number.

    .shepherd/peers/bin/python benchmarks/peer_return.py InvertedDoublePendulum-v5 300000 --seeds 3

Printed for each seed: the mean of the last 20 training episodes, and of 100 greedy ones of the last policy.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

# As in conf/exp/ppo_mujoco.yaml; networks of 2 x 64 tanh units with orthogonal weights are its default.
OPTIONS = {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2}
RATE = 3e-4


def trained(env_id: str, steps: int, seed: int) -> tuple[float, float]:
    """Mean return of the last training episodes, and of greedy ones on other seeds."""
    envs = VecNormalize(make_vec_env(env_id, 1, seed=seed), gamma=OPTIONS["gamma"])
    model = PPO("MlpPolicy", envs, learning_rate=lambda left: RATE * left, seed=seed, device="cpu", **OPTIONS)
    model.learn(steps)
    training = float(np.mean([episode["r"] for episode in list(model.ep_info_buffer)[-20:]]))
    envs.training, envs.norm_reward = False, False
    envs.seed(10**6 + seed)
    return training, float(evaluate_policy(model, envs, 100, warn=False)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id")
    parser.add_argument("steps", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        training, greedy = trained(options.env_id, options.steps, seed)
        print(f"seed {seed}: training {training:.1f}, greedy {greedy:.1f}", flush=True)


if __name__ == "__main__":
    main()
