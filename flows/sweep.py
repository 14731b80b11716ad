"""The sweep flows, one for each algorithm: the only place that tells what a sweep does, and in which order.

A Prefect deployment names `sweep_<algo>`; the command line calls `run_sweep`.
"""

from __future__ import annotations

import functools
from typing import Any

from flows.sweeps.running import leading, start
from flows.tasks import VERSION
from flows.workers.flow_run import ending_in_a_sentence, terminable_flow

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
    """The flow `sweep-<algo>`, from a space to a configuration that is confirmed."""

    @flow(name=f"sweep-{algo}", version=VERSION, persist_result=False)
    @ending_in_a_sentence
    def sweep(overrides: list[str] = [], name: str = "", accelerator: str = "") -> Any:  # noqa: B006
        """From a space to a configuration that is confirmed.

        Args:
            overrides: what one would type after `shepherd sweep`, one entry each: `sweep.trials=20`,
                `env.id=Acrobot-v1`, `algo.gamma=interval(0.9,1)`. Without `sweep=` or `exp=` the preset is
                the algorithm's own.
            name: of a sweep that is there already and is to be continued; usually empty.
            accelerator: `fabric.accelerator` where the overrides do not set it; the pool's own, usually left as it is.

        Returns:
            name, trials, best, confirmed, and the result in a sentence.
        """
        with leading(algo, overrides, name, accelerator) as sweep:  # plan, lock, study, signals, workers
            for trial in trials(sweep):  # as soon as a worker is free, and in batch mode the batch before has ended
                start(sweep, trial)
            best_preset(sweep)
            for run in confirm(sweep):  # the winner and the default configuration, both on fresh seeds
                start(sweep, run)
            verdict(sweep)  # and only a winner that is better is offered as challenger
            return report(sweep)

    return sweep


def __getattr__(name: str) -> Flow[..., Any]:
    """`sweep_<algo>`, which a deployment's entrypoint names; of a plugin's algorithms too."""
    return find_flow(name, "sweep", sweep_flow)


def run_sweep(algo: str, folder: SweepFolder) -> dict[str, Any]:
    """Run the sweep flow on a sweep, new or half-done, and give what it came to."""
    with terminable_flow(), prefect_api():
        return sweep_flow(algo)(name=folder.name)
