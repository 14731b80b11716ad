"""Steps per second of PPO in batched environments, and time, operations and bytes of a rollout and of an update.

    python -m benchmarks.batched_gpu --device cuda                         # 8,192 and 32,768 environments, on one GPU
    python -m benchmarks.batched_gpu --device cpu --num-envs 64 --eager    # a trial without a GPU

Each row trains PPO on batched CartPole-v1, with rollouts of 32 steps, 8 minibatches and 2 epochs: first some iterations
in which the rollout and the update are recorded, then those that are timed. A rollout and an update are timed
separately, each until the GPU has finished. In the first uncompiled iteration, the operations are counted, and the
bytes that they read and write. A recording has the same operations.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flows.config.compose import compose
from rlcore.train.trainer import Trainer

ROWS, MINIBATCHES, EPOCHS, WARM_UP = 32, 8, 2, 3
HEADER = """| environments | | steps/s | rollout, ms | update, ms | rollout: operations, MB | update: operations, MB |
|---|---|---|---|---|---|---|"""


class Traffic(TorchDispatchMode):
    """Counter of the operations that compute something, and of the bytes of their inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        if not view and "empty" not in str(func):
            tensors = {id(part): part for part in tree_leaves((args, kwargs, found)) if isinstance(part, Tensor)}
            self.operations += 1
            self.bytes += sum(part.numel() * part.element_size() for part in tensors.values())
        return found

    def __str__(self) -> str:
        return f"{self.operations:,}, {self.bytes / 1e6:,.0f}"


def make_trainer(num_envs: int, device: str, compiled: bool) -> Trainer:
    """Return a trainer of PPO on batched CartPole-v1."""
    rows, never = num_envs * ROWS, 1 << 40
    words = ["exp=ppo", "env=batched", "env.id=batched/CartPole-v1", f"env.num_envs={num_envs}"]
    words += [f"algo.rollout_steps={ROWS}", f"algo.per_rank_batch_size={rows // MINIBATCHES}", "algo.dense_units=64"]
    words += [f"algo.update_epochs={EPOCHS}", f"algo.total_steps={never}"]
    words += [f"algo.compile={str(compiled).lower()}", f"fabric.accelerator={device}"]
    words += [f"{key}={never}" for key in ("checkpoint.every", "evaluation.every")]
    return Trainer(compose(words)[0])


def count(num_envs: int, device: str) -> list[str]:
    """Count operations and bytes of an uncompiled rollout and of an uncompiled update."""
    trainer, counted = make_trainer(num_envs, device, False), list[str]()
    for part in (trainer.collect_rollout, trainer.take_gradient_steps):
        with Traffic() as traffic:
            part()
        counted.append(str(traffic))
    trainer.close()
    return counted


def measure(num_envs: int, device: str, compiled: bool, iterations: int) -> dict[str, float]:
    """Train PPO, and return steps per second, and the milliseconds of a rollout and of an update."""
    trainer, seconds = make_trainer(num_envs, device, compiled), {"rollout": 0.0, "update": 0.0}
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
    return {"steps": num_envs * ROWS / (1e-3 * sum(each.values())), **each}


def main() -> None:
    """Measure each number of environments, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8192, 32768])
    parser.add_argument("--iterations", type=int, default=20, help="iterations that are timed")
    parser.add_argument("--eager", action="store_true", help="measure only without compilation")
    arguments = parser.parse_args()
    print(HEADER)
    for num_envs in arguments.num_envs:
        counted = " | ".join(count(num_envs, arguments.device))
        for compiled in (False,) if arguments.eager else (False, True):
            rate, rollout, update = measure(num_envs, arguments.device, compiled, arguments.iterations).values()
            kind = "compiled" if compiled else "uncompiled"
            print(f"| {num_envs:,} | {kind} | {rate:,.0f} | {rollout:.2f} | {update:.2f} | {counted} |", flush=True)


if __name__ == "__main__":
    main()
