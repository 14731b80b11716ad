"""What the flow costs beside its training: `shepherd train` against the bare stages, one after the other, same config.

    python -m benchmarks.flow_overhead [--repeats 3] [OVERRIDE ...]

The Prefect home is warm (a dry run comes first). The final evaluation and the random baseline are played outside of the
comparison: both sides play three episodes and film nothing. Budget: 20 s and 2 % of the train stage.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flows.home import home

LEAN = ["env.capture_video=false", "evaluation.final_episodes=3", "evaluation.baseline_episodes=3"]


def seconds(*arguments: str) -> float:
    """Wall-clock time of one `shepherd` command."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "flows.cli", *arguments]
    done = subprocess.run(
        command, cwd=home(), env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began


def main() -> None:
    """Time both, alternating, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_overhead", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*", default=["exp=ppo"])
    options = parser.parse_args()
    flow, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        seconds("train", *options.overrides, *LEAN, "dry_run=true", f"run_dir={folder}/warm")
        for repeat in range(options.repeats):
            run = Path(folder) / str(repeat)
            flow.append(seconds("train", *options.overrides, *LEAN, f"run_dir={run}-flow"))
            seconds("stage", "make-env", f"{run}-bare", *options.overrides, *LEAN)
            bare.append(seconds("stage", "train", f"{run}-bare"))
            print(f"flow {flow[-1]:.1f} s, train stage {bare[-1]:.1f} s", flush=True)
    whole, train = statistics.median(flow), statistics.median(bare)
    budget = 20 + 0.02 * train
    print(f"median: flow {whole:.1f} s, train stage {train:.1f} s, difference {whole - train:.1f} s of {budget:.1f} s")


if __name__ == "__main__":
    main()
