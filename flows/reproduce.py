"""Prefect flow `reproduce`: train a run a second time and check that every checkpoint is bit-identical.

A Prefect deployment refers to `reproduce`; the command line, notebooks and tests call `reproduction`.
"""

from __future__ import annotations

from typing import Any

from flows.tasks import VERSION, advance, checkpoint, collect, evaluate, make_env, verdict, verify
from flows.workers.flow_run import managed_run, name_failed_run, shorten_failures, terminable_flow

from prefect import flow  # isort: skip - the modules above set the environment that it reads

from flows.runs.original import Original, restore
from flows.runs.trainer import expect_trainer, release_after
from flows.stages.train import training_loop
from flows.stages.verify import describe_difference, has_reached_original
from flows.workers.local_api import prefect_api
from rlcore.store.directory import RunDirectory


@flow(name="reproduce", version=VERSION, persist_result=False)
@shorten_failures
def reproduce(source: str, run_dir: str = "") -> Any:
    """Train a run again from its stored lineage and check that every checkpoint is bit-identical to the original.

    Args:
        source: the original run: its run directory, or a registered model, such as models:/NAME@champion or
            models:/NAME/3.
        run_dir: run directory of the second run. If empty, it is created next to that of the original run, with the
            name NAME_again.

    Returns:
        A dict with run_dir (of the second run), identical (True), tensors (number of compared tensors) and result (one
        line). The flow fails at the first checkpoint that differs.
    """
    with name_failed_run(f"reproduce {source}"):
        again = restore(source, run_dir)
    with managed_run(again.read_config()["algo"]["name"], [], str(again.path), register=False) as run:
        make_env(run)  # writes the environment card, which describe_difference reads
        describe_difference(run)
        collect(run)

        def save_and_verify(run: RunDirectory, policy_steps: int) -> None:
            checkpoint(run, policy_steps)
            verify(run, policy_steps)  # fails the flow if the bits differ

        training_loop(run, advance, save_and_verify, evaluate, stop=lambda at: has_reached_original(run, at))
        evaluate(run, final=True)
        return verdict(run)


def reproduction(run: RunDirectory) -> dict[str, Any]:
    """Run the flow `reproduce` on the run directory of a second run, and return the result of the flow.

    `flows.runs.original.restore` creates the run directory. If the second run is unfinished, it is resumed. Raises a
    `RunError` if a checkpoint differs from that of the original run, and `TrainingInterrupted` if a signal ended the
    second run.
    """
    with terminable_flow(), release_after(run):
        expect_trainer(run)  # the trainer starts while Prefect starts
        with prefect_api():
            return reproduce(source=Original.of(run).source, run_dir=str(run.path))
