"""Prefect flows that run a sweep (hyperparameter search), one flow for each algorithm.

Prefect deployments refer to a flow as `sweep_<algo>`, for example `sweep_ppo`. The command line calls `run_sweep`.
"""

from __future__ import annotations

import functools
from typing import Any

from flows.sweeps.running import managed_sweep, start
from flows.tasks import VERSION
from flows.workers.flow_run import shorten_failures, terminable_flow

from prefect import Flow, flow  # isort: skip - the modules above set the environment that it reads

from flows.sweeps.confirm import confirm, verdict
from flows.sweeps.driving import trials
from flows.sweeps.folder import SweepFolder
from flows.sweeps.preset import best_preset
from flows.sweeps.sweep_report import report
from flows.workers.local_api import prefect_api
from flows.workers.pools import find_flow


@functools.cache
def sweep_flow(algo: str) -> Flow[..., Any]:
    """Return the Prefect flow `sweep-<algo>`, which searches for good hyperparameters of an algorithm."""

    @flow(name=f"sweep-{algo}", version=VERSION, persist_result=False)
    @shorten_failures
    def sweep(overrides: list[str] = [], name: str = "", accelerator: str = "") -> Any:  # noqa: B006
        """Search a space of configurations, then train the best one on new seeds to confirm that it is better.

        Args:
            overrides: arguments of `shepherd sweep`, one entry each: `sweep.trials=20`, `env.id=Acrobot-v1`,
                `algo.gamma=interval(0.9,1)`. Without `sweep=` or `exp=`, the algorithm's sweep preset is used.
            name: name of an existing sweep to resume; empty for a new sweep.
            accelerator: value of `fabric.accelerator` if the overrides do not set it. The deployment sets it to the
                accelerator of its work pool; usually it does not need to be changed.

        Returns:
            A mapping with the keys name (of the sweep), best (trial), confirmed (comparison of the best trial with the
            default configuration on new seeds) and result (a sentence).
        """
        with managed_sweep(algo, overrides, name, accelerator) as sweep:  # plan, lock, study, signals, workers
            for trial in trials(sweep):  # waits for a free worker, and in batch mode for the end of the previous batch
                start(sweep, trial)
            best_preset(sweep)
            for run in confirm(sweep):  # the winner and the default configuration, both on new seeds
                start(sweep, run)
            verdict(sweep)  # registers the winner as challenger if it is better
            return report(sweep)

    return sweep


def __getattr__(name: str) -> Flow[..., Any]:
    """Return the flow `sweep_<algo>` of this module, which the entrypoint of a Prefect deployment names.

    The algorithm may be defined in a plugin.
    """
    return find_flow(name, "sweep", sweep_flow)


def run_sweep(algo: str, folder: SweepFolder) -> dict[str, Any]:
    """Run the Prefect flow of a new or unfinished sweep in this process, and return the result of the flow."""
    with terminable_flow(), prefect_api():
        return sweep_flow(algo)(name=folder.name)
