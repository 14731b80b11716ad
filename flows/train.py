"""The training flows, one for each algorithm: the only place that tells the order of the stages.

A Prefect deployment names `train_<algo>`; the command line, a notebook and a test call `train` or `run_flow`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flows.tasks import VERSION, advance, checkpoint, collect, evaluate, make_env, register_model, summary
from flows.workers.flow_run import managed_run, shorten_failures, terminable_flow

from prefect import Flow, flow  # isort: skip - the modules above set the environment that it reads

from flows.config.compose import compose
from flows.runs.create import new_run
from flows.runs.milestones import is_trained
from flows.runs.trainer import expect_trainer, release_after
from flows.workers.local_api import prefect_api
from flows.workers.pools import find_flow
from rlcore.store.directory import RunDirectory


@functools.cache
def training_flow(algo: str) -> Flow[..., Any]:
    """The flow `train-<algo>`, from a config to a registered model."""

    # Defaults that Prefect's form shows as an empty list and an empty field; nothing changes them.
    @flow(name=f"train-{algo}", version=VERSION, persist_result=False)
    @shorten_failures
    def train(overrides: list[str] = [], run_dir: str = "", accelerator: str = "") -> Any:  # noqa: B006
        """From a config to a registered model.

        Args:
            overrides: what one would type after `shepherd train`, one entry each: `env.id=Acrobot-v1`, `seed=3`,
                `algo.total_steps=200000`. Without `exp=` the preset is the algorithm's own.
            run_dir: the folder of a run that is there already and is to be continued, with overrides as for
                `shepherd resume`; usually empty.
            accelerator: `fabric.accelerator` where the overrides do not set it; the pool's own, usually left as it is.

        Returns:
            run_dir, status, policy_steps, model, and the result in a sentence.
        """
        with managed_run(algo, overrides, run_dir, accelerator) as run:  # config, lock, signals, trainer, mirror
            make_env(run)
            collect(run)
            while at := advance(run):  # to the next boundary; None: training is done, or pruned
                if "checkpoint" in at.due:
                    checkpoint(run, at.policy_steps)
                if "evaluate" in at.due:
                    evaluate(run, at.policy_steps)
            if is_trained(run):  # and not a sweep's trial that was not worth going on
                evaluate(run, final=True)
                register_model(run)
            return summary(run)

    return train


def __getattr__(name: str) -> Flow[..., Any]:
    """`train_<algo>`, which a deployment's entrypoint names; of a plugin's algorithms too."""
    return find_flow(name, "train", training_flow)


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """Train as `shepherd train` does: a new run from overrides, to a registered model; returns its summary."""
    from flows.runs.script_plugins import compose_in_script  # gymnasium, which commands import later or never

    return run_flow(new_run(overrides, composed=compose_in_script(lambda: compose(overrides))))


def run_flow(run: RunDirectory) -> dict[str, Any]:
    """Run the training flow on a run directory, new or half-done: what is done already is not done again.

    Args:
        run: with config.yaml.

    Returns:
        The run's summary.

    Raises:
        TrainingInterrupted: a signal ended it; the state is durable.
    """
    with terminable_flow(), release_after(run):
        expect_trainer(run)  # it gets ready while Prefect does
        with prefect_api():
            training_flow(run.read_config()["algo"]["name"])(run_dir=str(run.path.absolute()))
    return run.read_summary()
