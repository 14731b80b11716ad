"""Prefect flows of training, one for each algorithm.

This file and `flows.stages.train.training_loop` define the order of the stages.

A Prefect deployment refers to `train_<algo>`; the command line, notebooks and tests call `train` or `run_flow`.
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
from flows.runs.extend import extended_run
from flows.runs.milestones import is_trained
from flows.runs.notebook import RunSummary, notebook_progress
from flows.runs.trainer import expect_trainer, release_after
from flows.stages.train import training_loop
from flows.workers.local_api import prefect_api
from flows.workers.pools import find_flow
from rlcore.store.directory import RunDirectory


@functools.cache
def training_flow(algo: str) -> Flow[..., Any]:
    """Return the flow `train-<algo>`, which trains a config and registers the model."""

    # Prefect's form shows these defaults as empty fields; they are never modified.
    @flow(name=f"train-{algo}", version=VERSION, persist_result=False)
    @shorten_failures
    def train_and_register(overrides: list[str] = [], run_dir: str = "", accelerator: str = "") -> Any:  # noqa: B006
        """Train an agent and register the model.

        Args:
            overrides: arguments of `shepherd train`, one entry each: `env.id=Acrobot-v1`, `seed=3`,
                `algo.total_steps=200000`. Without `exp=`, the algorithm's own preset is used.
            run_dir: the folder of an existing run to resume, with overrides as for `shepherd resume`; usually empty.
            accelerator: value of `fabric.accelerator` if the overrides do not set it. The deployment sets it to the
                accelerator of its work pool; usually it does not need to be changed.

        Returns:
            run_dir, status, policy_steps, model, and a one-line result.
        """
        with managed_run(
            algo, overrides, run_dir, accelerator
        ) as run:  # config, lock, signals, trainer, copy to MLflow
            make_env(run)
            collect(run)
            training_loop(run, advance, checkpoint, evaluate)  # ends after the last step, or if the trial is pruned
            if is_trained(run):  # False for a pruned trial of a sweep
                evaluate(run, final=True)
                register_model(run)
            return summary(run)

    return train_and_register


def __getattr__(name: str) -> Flow[..., Any]:
    """Return the flow `train_<algo>` for the entrypoint of a deployment. Algorithms of plugins are included."""
    return find_flow(name, "train", training_flow)


def train(overrides: Sequence[str]) -> dict[str, Any]:
    """Create a run from overrides, train it, register its model and return its summary, like `shepherd train`.

    A notebook shows a progress bar, and the summary with the learning curve.
    """
    from flows.runs.script_plugins import compose_in_script  # imports gymnasium, which commands import late or never

    run = new_run(overrides, composed=compose_in_script(lambda: compose(overrides)))
    with notebook_progress(run):
        return RunSummary(run_flow(run), run)


def extend(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Train a run further in a new run, and return the summary of the new run, like `shepherd extend`.

    Args:
        source: the run to extend (its newest checkpoint), one of its checkpoints, or a models:/ URI.
        overrides: `key=value` arguments that change keys of its config, such as `algo.total_steps=200000`.

    Returns:
        The summary. A notebook shows a progress bar, and the summary with the learning curve.
    """
    run = extended_run(source, overrides)
    with notebook_progress(run):
        return RunSummary(run_flow(run), run)


def run_flow(run: RunDirectory) -> dict[str, Any]:
    """Run the training flow on a new or unfinished run. Completed stages are skipped.

    Args:
        run: a run directory with config.yaml.

    Returns:
        The run's summary.

    Raises:
        TrainingInterrupted: If a signal ended the training. It can be resumed.
        UserError: If the config or the machine does not allow the run. The folder of a new run is then removed.
    """
    with run.removed_if_refused(), terminable_flow(), release_after(run):
        expect_trainer(run)  # the trainer starts while Prefect starts
        with prefect_api():
            training_flow(run.read_config()["algo"]["name"])(run_dir=str(run.path.absolute()))
    return run.read_summary()
