"""Security check of a Prefect worker: a flow run may execute only code of this project.

A worker reads the deployment of a flow run from Prefect's database. The deployment determines which command and file
are executed, and the environment variables. An attacker who can write to the database, directly or through a server
without a password, could therefore execute any command as the worker's user. The worker makes this check before it
starts a flow run.
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
    """Check that a flow run executes only what the code of this project defines.

    In Prefect, job variables of a work pool, a deployment or a flow run can change the executed command, its
    environment and its working directory. They are refused.

    Args:
        deployment: Deployment of the flow run.
        job: Command, environment and working directory of the flow run, with job variables applied.
        usual: Command, environment and working directory of a flow run without job variables.

    Returns:
        A sentence with the reason why the flow run must not be started; "" if it may be.
    """
    if deployment is None:
        return "Refused: the flow run has no deployment; start it by `prefect deployment run`."
    name = f"{deployment.name} ({deployment.entrypoint})"
    if (deployment.entrypoint, deployment.name) not in {(one.entrypoint, one.name) for one in deployments()}:
        return (
            f"Refused: the code of this worker defines no deployment {name}; `make up` creates those that it defines."
        )
    if not _gets_our_code(deployment.pull_steps):
        return (
            f"Refused: the code of deployment {name} comes neither from {home()} nor from the repository in this "
            f"worker's {REPOSITORY}; start the worker with that variable, or deploy again with `make up`."
        )
    if changed := sorted(key for key in job if job[key] != usual[key]):
        return (
            f"Refused: job variables of the flow run, of deployment {name} or of the work pool change "
            f"{', '.join(changed)}; remove them, and set the variables that a run needs in the worker's environment."
        )
    return ""


def _gets_our_code(steps: list[dict[str, Any]] | None) -> bool:
    """Return True if a deployment's pull steps (they copy the code to a worker) provide only code of this project.

    They may select the worker's checkout, or clone the repository in the worker's variable SHEPHERD_REPOSITORY.
    """
    if steps == [{SET_DIRECTORY: {"directory": str(home())}}]:
        return True
    match steps:
        case [{**step}] if list(step) == [CLONE]:
            asked, repository = dict(step[CLONE]), os.environ.get(REPOSITORY)
            commit = str(asked.pop("commit_sha", ""))
            known = bool(repository) and asked == {"repository": repository}
            return known and re.fullmatch("[0-9a-f]{40}", commit) is not None
    return False
