"""Speed of batched CartPole-v1 without an agent: steps of all copies for each CPU second, with one thread.

    python -m benchmarks.batched_steps      # prints JSON; `make bench-batched` writes it to docs/results/batched.md

The actions are random and were drawn before. Resets of ended copies are part of a step. The compiled step is that of
`algo.compile=true`.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch

from flows.config.compose import compose
from rlcore.compiler import Compiler
from rlcore.envs.vector.choose import make_vector_env

COPIES, STEPS, WARM_UP, REPEATS = 8192, 50, 20, 5


def measure() -> dict[str, list[float]]:
    """Return "compiled" and "uncompiled" -> steps for each CPU second, one number for each repeat."""
    torch.set_num_threads(1)
    config = compose(["exp=ppo", "env=batched", "env.id=batched/CartPole-v1", f"env.num_envs={COPIES}"])[0]
    actions, found = [torch.randint(0, 2, (COPIES,)) for _ in range(STEPS)], dict[str, list[float]]()
    for name in ("uncompiled", "compiled"):
        envs = make_vector_env(config.env, num_envs=COPIES, seed=0)
        envs.reset()
        if name == "compiled":
            envs.compile(Compiler(config, envs.spec, (COPIES, 1), lambda: None))
            assert envs.compiled, "the step was not compiled"
        for action in actions[:WARM_UP]:
            envs.step(action)
        found[name] = []
        for _ in range(REPEATS):
            envs.pop_episodes()
            began = time.process_time()
            for action in actions:
                envs.step(action)
            found[name].append(COPIES * STEPS / (time.process_time() - began))
    return found


def table(figures: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of the section about the environment alone."""
    lines = [f"## batched/CartPole-v1 without an agent, {COPIES:,} copies", ""]
    lines += [
        "Goal: 5 million steps per second, aim 10 million.",
        "",
        "| step | million steps per CPU second |",
        "|---|---|",
    ]
    lines += [f"| {name} | {statistics.median(figures['rows'][name]) / 1e6:.1f} |" for name in figures["rows"]]
    return [*lines, "", f"{figures['day']}: median of {REPEATS} measurements; {figures['state']}.", ""]


if __name__ == "__main__":
    print(json.dumps(measure()))
