"""Time of gradient steps on a GPU: eager, as a CUDA graph, and as a CUDA graph in half precision.

python -m benchmarks.gpu            # writes docs/results/gpu.md; some minutes, on a machine with an NVIDIA GPU
python -m benchmarks.gpu --only 1m  # only cases with `1m` in their name

For each row of the table, a learner is created with environments that return random data. After some warm-up steps,
`update()` is timed: it draws a batch and takes one gradient step. Acting and environment steps are not timed. The peak
memory is the largest allocation that torch reports, minus the allocation before the learner was created.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from flows.config.compose import compose
from rlcore.conformance.trainings import find_all
from rlcore.optim.step import Step
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.trainer import Trainer
from rlcore.train.warmup import RandomEnvs

PAGE = Path(__file__).parents[1] / "docs" / "results" / "gpu.md"
PICTURES = EnvSpec(
    "pictures",
    {"rgb": ArraySpec((64, 64, 3), "uint8", kind="image")},
    ActionSpec("Discrete", (), "int64", nvec=(9,), start=(0,)),
)
VECTORS = EnvSpec(
    "vectors",
    {"state": ArraySpec((17,), "float32")},
    ActionSpec("Box", (6,), "float32", low=(-1.0,) * 6, high=(1.0,) * 6),
)
STEERED = EnvSpec("steered pictures", PICTURES.obs, VECTORS.action)
SIZE_1M = [
    "algo=dreamer_v3_XS",
    "algo.dense_units=64",
    "algo.mlp_layers=3",
    "algo.world_model.discrete_size=4",
    "algo.world_model.encoder.cnn_channels_multiplier=4",
    "algo.world_model.recurrent_model.recurrent_state_size=512",
    "algo.world_model.transition_model.hidden_size=64",
    "algo.world_model.representation_model.hidden_size=64",
]
SHORT = ["algo.replay_ratio=1", "algo.total_steps=100000", "buffer.size=4000"]
FEW = [*SHORT, "algo.learning_starts=300"]
HOST = [*SHORT, "algo.learning_starts=1024"]
DREAMS = [*HOST, "buffer.on_device=true"]
CASES: dict[str, tuple[EnvSpec, list[str]]] = {
    "dreamer_v3, size 1m, 16 × 64": (PICTURES, ["exp=dreamer_v3", *SIZE_1M, *DREAMS]),
    "dreamer_v3, size 1m, rows on the host": (PICTURES, ["exp=dreamer_v3", *SIZE_1M, *HOST]),
    "dreamer_v3_S, 16 × 64": (PICTURES, ["exp=dreamer_v3", "algo=dreamer_v3_S", *DREAMS]),
    "dreamer_v3_XL, 16 × 64": (PICTURES, ["exp=dreamer_v3", "algo=dreamer_v3_XL", *DREAMS]),
    "dreamer_v2, 16 × 50": (PICTURES, ["exp=dreamer_v2", *DREAMS, "algo.per_rank_pretrain_steps=1"]),
    "dreamer_v1, 50 × 50": (PICTURES, ["exp=dreamer_v1", *DREAMS, "algo.per_rank_pretrain_steps=1"]),
    "sac_ae, 128 of three frames": (STEERED, ["exp=sac_ae", *FEW, "algo.per_rank_pretrain_steps=1"]),
    "sac, 256": (VECTORS, ["exp=sac", *FEW]),
    "crossq, 256": (VECTORS, ["exp=crossq", *FEW]),
    "droq, 256": (VECTORS, ["exp=droq", *FEW]),
    "simba": (VECTORS, ["exp=simba", *FEW]),
    "ppo, 64": (VECTORS, ["exp=ppo", "algo.total_steps=1000000"]),
    "ppo_recurrent, LSTM 64": (VECTORS, ["exp=ppo_recurrent", "algo.total_steps=1000000"]),
}
WAYS = {
    "eager": ["algo.compile=false"],
    "recorded": ["algo.compile=true"],
    "recorded, bf16-mixed": ["algo.compile=true", "fabric.precision=bf16-mixed"],
}
WARM, TIMED = 3, 15
HEAD = """# Gradient steps on a GPU

Written by `python -m benchmarks.gpu` on {card}, torch {torch}. Times are medians over {timed} gradient steps, and each
includes drawing the batch. The first update records the step; its kernels were cached by an earlier run. Memory is
torch's peak allocation.

The Dreamers use images of 64 × 64, nine actions, and a batch given as sequences × rows; their replay buffer is in GPU
memory unless noted. The SAC and PPO families use host memory, six actions, and vectors of 17 numbers (SAC-AE: images).

| | mode | ms per step | first update, s | peak MB |
|---|---|---|---|---|
"""


def main() -> None:
    """Measure all cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run only the cases with this text in their name")
    parser.add_argument("--page", type=Path, default=PAGE, help="file to write the table to")
    asked = parser.parse_args()
    card = torch.cuda.get_device_name()
    head = HEAD.format(card=card, torch=torch.__version__, timed=TIMED)
    rows = list[str]()
    for row in measure_all(asked.only):
        rows.append(row)
        print(row, flush=True)
        asked.page.write_text(head + "\n".join(rows) + "\n")


def measure_all(only: str) -> Iterator[str]:
    """Measure the cases whose name contains `only`; yield one row of the Markdown table for each case and mode."""
    for name, (spec, overrides) in CASES.items():
        if only not in name:
            continue
        for way, more in WAYS.items():
            took, first, peak, recorded = measure(spec, [*overrides, *more])
            mode = way if recorded == (way != "eager") else f"{way}: failed"
            yield f"| {name} | {mode} | {took * 1e3:.1f} | {first:.1f} | {peak / 1e6:,.0f} |"
            gc.collect()
            torch.cuda.empty_cache()


def measure(spec: EnvSpec, overrides: list[str]) -> tuple[float, float, int, bool]:
    """Measure the gradient steps of one case.

    Returns (median seconds per gradient step, seconds of the first update, peak bytes, recorded); `recorded` is True if
    the gradient step runs as a CUDA graph.
    """
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    training = make(spec, overrides)
    while not training.learner.updates:
        training.collect()
        first, _ = _update(training)
    for _ in range(WARM):
        training.collect()
        _update(training)
    took = list[float]()
    while len(took) < TIMED:
        training.collect()
        seconds, steps = _update(training)
        took += [seconds / steps] if steps else []
    recorded = any(step.compiled for step in find_all(training.learner, Step).values())
    return statistics.median(took), first, torch.cuda.max_memory_allocated() - before, recorded


def make(spec: EnvSpec, overrides: list[str]) -> Trainer:
    """Return a `Trainer` on the GPU whose environment returns random data of the shapes in `spec`."""
    images, vectors = (["rgb"], []) if "rgb" in spec.obs else ([], ["state"])
    keys = [f"algo.cnn_keys.encoder={images}", f"algo.mlp_keys.encoder={vectors}", "env=dummy", "env.num_envs=1"]
    config, _ = compose([*overrides, *keys, "fabric.accelerator=cuda", "buffer.memmap=false"])
    return Trainer(config, envs=RandomEnvs(spec, 1, None))


def _update(training: Trainer) -> tuple[float, int]:
    """Take the gradient steps of one iteration; return (seconds, number of gradient steps)."""
    torch.cuda.synchronize()
    before, began = training.learner.updates, time.perf_counter()
    training.update()
    torch.cuda.synchronize()
    return time.perf_counter() - began, training.learner.updates - before


if __name__ == "__main__":
    main()
