"""Time and peak memory of gradient steps with our optimizers (not compiled), compared with torch's fused Adam.

python -m benchmarks.optimizer            # writes docs/results/optimizer.md; about two minutes

Each number is measured in a separate process with one thread. A step consists of the loss of 64 samples, its gradient,
gradient clipping and the update rule. Each optimizer is measured three times, in alternation with the others.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NETS = {"3 x 256 units": [17, 256, 256, 256, 6], "20 million parameters": [512, *[2048] * 5, 1024, 8]}
RULES = ("adam", "adamw", "laprop", "rmsprop", "sgd")
ROUNDS, SAMPLES, CLIP = 3, 64, 0.5
PAGE = Path(__file__).parents[1] / "docs" / "results" / "optimizer.md"
HEAD = """# Optimizers

Written by `python -m benchmarks.optimizer`: gradient steps of a perceptron without compilation (loss of 64 samples,
gradient, clipping by the global norm, update rule). Times are CPU milliseconds with one thread; each value is the
median over {rounds} processes, and the optimizers alternate. Ratios are relative to `torch.optim.Adam(fused=True)` with
`clip_grad_norm_`. Memory is the peak during a step, minus the memory of the network without gradients.

| network | optimizer | ms per step | ratio | MB | ratio |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Measure all optimizers and write the page."""
    rows: list[str] = []
    for net in NETS:
        sides = ("torch, fused Adam", *RULES)
        measured = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side in sides:
                measured[side].append(_measure_in_process(net, side))
        medians = {
            side: [statistics.median(column) for column in zip(*each, strict=True)] for side, each in measured.items()
        }
        time_of, memory_of = medians[sides[0]]
        for side, (took, memory) in medians.items():
            who = side if side == sides[0] else f"`{side}`"
            rows.append(
                f"| {net} | {who} | {took:.2f} | {took / time_of:.2f} | {memory:.0f} | {memory / memory_of:.2f} |"
            )
    PAGE.write_text(HEAD.format(rounds=ROUNDS) + "\n".join(rows) + "\n")
    print(PAGE.read_text())


def _measure_in_process(net: str, side: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.optimizer", net, side]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(net: str, side: str) -> list[float]:
    """Measure a gradient step in this process.

    Args:
        net: key of `NETS`.
        side: "torch, fused Adam", or one of `RULES` for our optimizer.

    Returns:
        [CPU milliseconds per gradient step, peak MB during a step minus the MB before the optimizer was created].
    """
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = NETS[net]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    module, x = nn.Sequential(*layers[:-1]), torch.randn(SAMPLES, sizes[0])
    module(x).sum().backward()
    module.zero_grad()
    gc.collect()
    before = _status("VmRSS")
    step = _theirs(module, x) if side.startswith("torch") else _ours(module, x, side)
    for _ in range(2):
        step()
    Path("/proc/self/clear_refs").write_text("5")  # resets the recorded peak
    times: list[float] = []
    for _ in range(15 if len(sizes) > 5 else 300):
        begun = time.process_time()
        step()
        times.append(time.process_time() - begun)
    return [1e3 * statistics.median(times), _status("VmHWM") - before]


def _theirs(module: Any, x: Any) -> Callable[[], object]:
    import torch

    optimizer = torch.optim.Adam(module.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        module(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()

    return step


def _ours(module: Any, x: Any, rule: str) -> Callable[[], object]:
    import torch
    from lightning_fabric import Fabric

    from rlcore.config.groups import EnvConfig
    from rlcore.config.run import AlgorithmConfig, RunConfig
    from rlcore.optim.optimizer import Optimizer
    from rlcore.optim.optimizer_keys import OptimizerConfig
    from rlcore.types import Context, SingleProcess

    spec: Any = None  # not used by an optimizer
    run = RunConfig(algo=AlgorithmConfig(name="none", total_steps=1), env=EnvConfig(id="none"))
    context = Context(run, spec, Fabric(accelerator="cpu", devices=1), SingleProcess(), 1)
    samples = torch.tensor(float(len(x) * module[-1].out_features))

    def loss(x: Any) -> Any:
        return module(x).square().sum(), samples, {}

    config = OptimizerConfig(name=rule, betas=None, eps=None)
    optimizer = Optimizer(module, loss, config, context, max_grad_norm=CLIP)
    return lambda: optimizer.minimize(x)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
