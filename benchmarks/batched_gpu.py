"""Steps per second of PPO in batched environments, and the time of a rollout and of an update.

    python -m benchmarks.batched_gpu --device cuda                         # 8,192 and 32,768 environments, on one GPU
    python -m benchmarks.batched_gpu --device cpu --num-envs 64 --eager    # a trial without a GPU

Each row trains PPO on batched CartPole-v1, with rollouts of 32 steps, 8 minibatches and 2 epochs: first some iterations
in which the rollout and the gradient step are recorded, then those that are timed. A rollout and an update are timed
separately, each until the GPU has finished.
"""

from __future__ import annotations

import argparse
import time

import torch

from flows.config.compose import compose
from rlcore.train.trainer import Trainer

ROWS, MINIBATCHES, EPOCHS, WARM_UP = 32, 8, 2, 3


def measure(num_envs: int, device: str, compiled: bool, iterations: int) -> dict[str, float]:
    """Train PPO, and return steps per second, and the milliseconds of a rollout and of an update."""
    rows = num_envs * ROWS
    words = ["exp=ppo", "env=batched", "env.id=batched/CartPole-v1", f"env.num_envs={num_envs}"]
    words += [f"algo.rollout_steps={ROWS}", f"algo.per_rank_batch_size={rows // MINIBATCHES}", "algo.dense_units=64"]
    words += [f"algo.update_epochs={EPOCHS}", f"algo.total_steps={rows * (iterations + WARM_UP)}"]
    words += [f"algo.compile={str(compiled).lower()}", f"fabric.accelerator={device}"]
    words += [f"{key}={rows * (iterations + WARM_UP)}" for key in ("checkpoint.every", "evaluation.every")]
    trainer = Trainer(compose(words)[0])
    seconds = {"rollout": 0.0, "update": 0.0}
    for iteration in range(iterations + WARM_UP):
        for name, part in (("rollout", trainer.collect_rollout), ("update", trainer.take_gradient_steps)):
            began = time.perf_counter()
            part()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name] += (time.perf_counter() - began) * (iteration >= WARM_UP)
        trainer.envs.pop_episodes()
    trainer.close()
    each = {name: 1e3 * total / iterations for name, total in seconds.items()}
    return {"steps per second": rows / (1e-3 * sum(each.values())), **{f"ms of a {k}": v for k, v in each.items()}}


def main() -> None:
    """Measure each number of environments, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8192, 32768])
    parser.add_argument("--iterations", type=int, default=20, help="iterations that are timed")
    parser.add_argument("--eager", action="store_true", help="measure only without compilation")
    arguments = parser.parse_args()
    print("| environments | | steps/s | ms a rollout | ms an update |\n|---|---|---|---|---|")
    for num_envs in arguments.num_envs:
        for compiled in (False,) if arguments.eager else (False, True):
            rate, rollout, update = measure(num_envs, arguments.device, compiled, arguments.iterations).values()
            kind = "compiled" if compiled else "uncompiled"
            print(f"| {num_envs:,} | {kind} | {rate:,.0f} | {rollout:.2f} | {update:.2f} |", flush=True)


if __name__ == "__main__":
    main()
