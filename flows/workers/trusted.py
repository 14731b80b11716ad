"""Check of a flow run before a worker starts it: is it one that this project's code defines?

A deployment says which command, file and variables a worker runs, and it comes from Prefect's database. Who could write
there once, through a server without a password or to a file, could have the worker's user run any command later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flows.settings import home
from flows.workers.pools import CLONE, REPOSITORY, SET_DIRECTORY, deployments

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse


def refusal(deployment: DeploymentResponse | None, job: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Check that this project's code defines what a flow run would run.

    Args:
        deployment: Its deployment.
        job: Its command, environment and working directory, from its work pool, deployment and own job variables.
        usual: The same without any job variables.

    Returns:
        Why it must not be started, as a sentence; "" if it may.
    """
    if deployment is None:
        return "Refused: the flow run has no deployment; start it by `prefect deployment run`."
    name = f"{deployment.name} ({deployment.entrypoint})"
    if (deployment.entrypoint, deployment.name) not in {(one.entrypoint, one.name) for one in deployments()}:
        return f"Refused: the code of this worker defines no deployment {name}; `make up` makes those it defines."
    if not _gets_our_code(deployment.pull_steps):
        return (
            f"Refused: deployment {name} takes its code neither from {home()} nor from the repository that "
            f"{REPOSITORY} names where this worker was started; set it there, or deploy again by `make up`."
        )
    if changed := sorted(key for key in job if job[key] != usual[key]):
        return (
            f"Refused: job variables of the flow run, of deployment {name} or of the work pool change "
            f"{', '.join(changed)}; remove them, and set what a run needs where the worker is started."
        )
    return ""


def _gets_our_code(steps: list[dict[str, Any]] | None) -> bool:
    """Return whether pull steps only enter the checkout of this worker, or clone the repository that it knows."""
    if steps == [{SET_DIRECTORY: {"directory": str(home())}}]:
        return True
    match steps:
        case [{**step}] if list(step) == [CLONE]:
            asked, repository = dict(step[CLONE]), os.environ.get(REPOSITORY)
            commit = str(asked.pop("commit_sha", ""))
            known = bool(repository) and asked == {"repository": repository}
            return known and re.fullmatch("[0-9a-f]{40}", commit) is not None
    return False
