"""Prefect flow that trains a group of runs in worker processes of this machine.

The runs of a group have the same config except for keys with several values, such as `seed=0,1,2`.
"""

from __future__ import annotations

from typing import Any

from flows.sweeps.group_runs import RunGroup, group_of, run_jobs
from flows.sweeps.local import local_executor
from flows.tasks import VERSION
from flows.workers.flow_run import shorten_failures, terminable_flow

from prefect import flow  # isort: skip - the modules above set the environment that it reads

from flows.process.signals import stay_terminable
from flows.settings import state_folder
from flows.workers.local_api import prefect_api


@flow(name="train-group", version=VERSION, persist_result=False)
@shorten_failures
def train_group(overrides: list[str], workers: int | None = None) -> Any:
    """Train one run for each combination of values in the overrides, for example three runs for `seed=0,1,2`.

    Finished runs are skipped.

    Args:
        overrides: arguments of `shepherd train`, one entry each: `seed=0,1,2`, `group=ppo-default`.
        workers: number of runs at a time; default: the number of processor cores divided by `num_threads`.

    Returns:
        The name of the group, the folders of its runs, and the result in a sentence.
    """
    group = group_of(overrides, workers)
    with stay_terminable(), local_executor(group.workers, group.accelerator, log_of(group)) as executor:
        for run in run_jobs(group, executor):
            executor.start(run)
    runs = [str(training.run_dir) for training in group.trainings]
    return {"group": group.name, "runs": runs, "result": f"group {group.name}: {len(runs)} runs done"}


def log_of(group: RunGroup) -> Any:
    """Return the path of the log file that receives the output of a group's workers."""
    return state_folder() / "groups" / f"{group.name}.log"


def run_group(overrides: list[str], workers: int | None = None) -> dict[str, Any]:
    """Run the flow `train_group` in this process, as `shepherd train seed=0,1,2` does, and return its result.

    The arguments and the result are those of `train_group`.
    """
    with terminable_flow(), prefect_api():
        return train_group(overrides, workers)
