"""Time that the Prefect flow of `shepherd train` adds to the train stage (`shepherd stage train`).

    python -m benchmarks.flow_overhead [--repeats 3] [OVERRIDE ...]

The flow and the train stage run alternately with the same config. A dry run comes first, because the first flow in a
Prefect home has to create the database. The user requested the random baseline, the final evaluation and the video, so
they do not count as overhead. Prefect records the times of the baseline and the final evaluation, which are tasks of
the flow. To time the video, it is recorded a second time after the flow.

    overhead = time of the flow - baseline - final evaluation - time of the train stage

The accepted overhead is 20 s and 2 % of the train stage.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from flows.settings import home, state_folder

TASKS = ("make-env", "collect", "train", "checkpoint", "evaluate", "register-model", "summary")
QUERY = """
    select task_run.name, task_run.start_time, task_run.end_time
    from task_run join flow_run on task_run.flow_run_id = flow_run.id
    where json_extract(flow_run.parameters, '$.run_dir') = ? order by task_run.start_time
"""


def seconds(*arguments: str) -> float:
    """Return the wall-clock time of one `shepherd` command."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "flows.cli.main", *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(command, cwd=home(), env=kept | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began


def task_seconds(run: Path) -> dict[str, float]:
    """Read from Prefect's database how many seconds a run's flow spent in each of its tasks.

    The keys are the names of the tasks. The last task `evaluate` has the key "final evaluation" instead.
    """
    with sqlite3.connect(state_folder() / "prefect" / "prefect.db", timeout=30) as store:
        rows = store.execute(QUERY, (str(run),)).fetchall()
    spent: dict[str, float] = dict.fromkeys((*TASKS, "final evaluation"), 0.0)
    last = max(start for name, start, _ in rows if name.startswith("evaluate"))
    for name, start, end in rows:
        kind = "final evaluation" if start == last and name.startswith("evaluate") else name.split()[0]
        spent[kind] += (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    return spent


def video_seconds(run: Path) -> float:
    """Return the seconds needed to record a video of one greedy episode with the run's selected checkpoint."""
    from rlcore.evaluation.final import choose, record_video
    from rlcore.store.directory import RunDirectory

    directory = RunDirectory(run)
    record_video(directory, choose(directory), "again.mp4")  # so that imports are not timed
    began = time.perf_counter()
    record_video(directory, choose(directory), "again.mp4")
    return time.perf_counter() - began


def main() -> None:
    """Time the flow and the train stage `--repeats` times each, in alternation, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_overhead", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("overrides", nargs="*", default=["exp=ppo"])
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        seconds("train", *options.overrides, "dry_run=true", f"run_dir={folder}/warm")
        for repeat in range(options.repeats):
            run = Path(folder) / str(repeat)
            whole = seconds("train", *options.overrides, f"run_dir={run}-flow")
            seconds("stage", "make-env", f"{run}-bare", *options.overrides)
            train = seconds("stage", "train", f"{run}-bare")
            spent = task_seconds(Path(f"{run}-flow"))
            requested = spent["collect"] + spent["final evaluation"]
            rows.append({"whole flow": whole, "train stage alone": train, **spent})
            rows[-1] |= {"overhead": whole - requested - train}
            rows[-1] |= {"of the final evaluation: video": video_seconds(Path(f"{run}-flow"))}
            print(f"flow {whole:.1f} s, train stage {train:.1f} s, overhead {rows[-1]['overhead']:.1f} s", flush=True)
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(f"\nmedians of {options.repeats}, seconds")
    for name, value in medians.items():
        print(f"  {name:<34}{value:8.2f}")
    train = medians["train stage alone"]
    print(f"  budget of the overhead: 20 s + 2 %{20 + 0.02 * train:8.2f}")


if __name__ == "__main__":
    main()
