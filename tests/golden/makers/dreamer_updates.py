"""Count the gradient steps of SheepRL's Dreamers by its own schedule for test_dreamer_updates.py.

dreamer_updates.json        "planned": for an `exp` and a number of ranks, [policy steps, gradient steps of a rank]
                            at the first training, at eight points and at the end; "done": of whole runs with `SMALL`
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from sheeprl.utils.utils import off_policy_schedule

from tests.golden.makers.files import lines, write_text
from tests.golden.makers.sheeprl_configs import compose

EXPS = tuple(f"dreamer_v{version}{kind}" for version in (1, 2, 3) for kind in ("", "_benchmarks"))
PLACES = 8
# Lengths and ratios of the runs by preset; everything else is that of the preset.
SMALL = {
    "dreamer_v1_benchmarks": {
        "total_steps": 96,
        "learning_starts": 60,
        "replay_ratio": 0.1,
        "per_rank_pretrain_steps": 3,
    },
    "dreamer_v2_benchmarks": {
        "total_steps": 90,
        "learning_starts": 10,
        "replay_ratio": 0.2,
        "per_rank_pretrain_steps": 1,
    },
    "dreamer_v3_benchmarks": {
        "total_steps": 130,
        "learning_starts": 100,
        "replay_ratio": 0.3,
        "per_rank_pretrain_steps": 0,
    },
}


def count_planned(exp: str, ranks: int) -> list[list[int]]:
    """Return the gradient steps of a rank after the policy steps, as `main` of every Dreamer computes them."""
    config = compose(exp)
    row = config.env.num_envs * ranks
    iterations = int(config.algo.total_steps // row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for sequences that are longer than the first steps
        _, first, more, iterations, ratio = off_policy_schedule(config, {}, 1, iterations, row, ranks)
    places = {first, *(iterations * place // PLACES for place in range(1, PLACES + 1))}
    taken, found = 0, list[list[int]]()
    for iteration in range(first, iterations + 1):
        taken += ratio((iteration - first + 1) * row / ranks) + (more if iteration == first else 0)
        if iteration in places:
            found.append([iteration * row, taken])
    return found


def count_done(exp: str) -> int:
    """Return the number of gradient steps in the last checkpoint of a run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"algo.{key}={value}" for key, value in SMALL[exp].items()]
        words += [f"exp={exp}", "env=dummy", "env.id=discrete_dummy", "env.num_envs=1", "env.sync_env=True"]
        words += ["env.capture_video=False", "metric.log_level=0", "checkpoint.save_last=True", "buffer.memmap=False"]
        words += ["fabric.accelerator=cpu", "model_manager.disabled=True", f"log_root={folder}"]
        subprocess.run([str(Path(sys.executable).with_name("sheeprl")), *words], check=True, cwd=folder)
        (saved,) = Path(folder).rglob("*.ckpt")
        return torch.load(saved, weights_only=False)["per_rank_gradient_steps"]


def main() -> None:
    plans = {exp: {ranks: count_planned(exp, ranks) for ranks in (1, 2)} for exp in EXPS}
    runs = {exp: {"algo": SMALL[exp], "gradient_steps": count_done(exp)} for exp in SMALL}
    write_text("dreamer_updates", f'{{"planned": {lines(plans)}, "done": {lines(runs)}}}\n')


if __name__ == "__main__":
    main()
