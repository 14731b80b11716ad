"""The flow that makes a run again and compares the bits, segment by segment: `reproduce`.

A Prefect deployment names `reproduce`; the command line, a notebook and a test call `reproduction`.
"""

from __future__ import annotations

from typing import Any

from flows.tasks import VERSION, advance, checkpoint, collect, evaluate, make_env, verdict, verify
from flows.workers.flow_run import managed_run, name_failed_run, shorten_failures, terminable_flow

from prefect import flow  # isort: skip - the modules above set the environment that it reads

from flows.runs.original import Original, restore
from flows.runs.trainer import expect_trainer, release_after
from flows.stages.verify import describe_difference, has_reached_original
from flows.workers.local_api import prefect_api
from rlcore.store.directory import RunDirectory


@flow(name="reproduce", version=VERSION, persist_result=False)
@shorten_failures
def reproduce(source: str, run_dir: str = "") -> Any:
    """Make a run again from its recorded lineage and compare the bits at every checkpoint.

    Args:
        source: the folder of a run, or models:/NAME@champion or models:/NAME/3.
        run_dir: the folder of the second run; usually empty: beside the first, as NAME_again.

    Returns:
        run_dir, identical, tensors, and the result in a sentence. The flow fails at the first checkpoint that differs.
    """
    with name_failed_run(f"reproduce {source}"):
        again = restore(source, run_dir)
    with managed_run(again.read_config()["algo"]["name"], [], str(again.path), registers=False) as run:
        make_env(run)  # what follows reads its card
        describe_difference(run)
        collect(run)
        while at := advance(run):
            if "checkpoint" in at.due:
                checkpoint(run, at.policy_steps)
                verify(run, at.policy_steps)  # ends the flow where the bits differ
            if "evaluate" in at.due:
                evaluate(run, at.policy_steps)
            if has_reached_original(run, at):
                break
        evaluate(run, final=True)
        return verdict(run)


def reproduction(run: RunDirectory) -> dict[str, Any]:
    """Run the flow on a run that `flows.runs.original.restore` gave, new or half-done; what the flow returns.

    A `RunError` where the second run learned something else, `TrainingInterrupted` where a signal ended it.
    """
    with terminable_flow(), release_after(run):
        expect_trainer(run)  # it gets ready while Prefect does
        with prefect_api():
            return reproduce(source=Original.of(run).source, run_dir=str(run.path))
