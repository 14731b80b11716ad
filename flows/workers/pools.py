"""Work pools and deployments, made through the API of the server that PREFECT_API_URL names."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import yaml

from flows.runs.lineage import UNKNOWN, code_version
from flows.settings import home
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.errors import UserError
from rlcore.system.secrets import redact

# Earlier versions had Prefect call silent flow runs crashed; flows.workers.worker does it now.
OLD_RULE = "shepherd: a flow run that gives no sign of life has crashed"
POOLS = ("local", "gpu")
DRIVERS = "drivers"  # queue of pool local whose flow runs take no place: a sweep only waits for its trials
# Flows of no algorithm: where a worker finds them, and what they do. Each is deployed as `default`.
OTHERS = {
    "reproduce": ("flows/reproduce.py:reproduce", "Repeat a run and compare the bits, on pool local."),
    "compare": ("flows/comparison.py:compare", "Compare groups of runs, on pool local."),
}

REPOSITORY = "SHEPHERD_REPOSITORY"
CLONE, SET_DIRECTORY = "prefect.deployments.steps.git_clone", "prefect.deployments.steps.set_working_directory"
# What `prefect deploy` asks of the checkout that it is typed in.
SCRIPTS = {
    "repository": 'echo "${SHEPHERD_REPOSITORY:-$(git remote get-url origin)}"',
    "commit": 'git diff --quiet HEAD || { echo "commit your changes first" >&2; exit 1; }; git rev-parse HEAD',
}


class Deployment(NamedTuple):
    """A flow as workers load it: from `entrypoint`, in the checkout; its parameters are none of the overrides.

    Many have the same name. Prefect's list distinguishes them by the flow and by the tags, their pages by `about`.
    """

    entrypoint: str
    name: str
    tags: tuple[str, ...]
    about: str
    pool: str = "local"
    queue: str = "default"
    parameters: Mapping[str, str] = {}


def prefect_yaml() -> str:
    """The deployments as `prefect deploy --all` reads them, for servers that `make up` did not start.

    python -m flows.workers.pools > prefect.yaml
    """
    listed = [
        {"name": one.name, "entrypoint": one.entrypoint, "tags": list(one.tags), "description": one.about}
        | {"work_pool": {"name": one.pool, "work_queue_name": one.queue}}
        | ({"parameters": dict(one.parameters)} if one.parameters else {})
        for one in deployments()
    ]
    head = (
        "# Made by `python -m flows.workers.pools`; `make up` deploys the same through the API of its server.\n"
        "# Workers get the commit that is checked out at `prefect deploy`, from SHEPHERD_REPOSITORY or else origin.\n"
    )
    step = "prefect.deployments.steps.run_shell_script"
    build = [{step: {"id": name, "script": f"sh -c '{script}'"}} for name, script in SCRIPTS.items()]
    pull = [{CLONE: {"repository": "{{ repository.stdout }}", "commit_sha": "{{ commit.stdout }}"}}]
    whole = {"name": "shepherd", "build": build, "pull": pull, "deployments": listed}
    return head + yaml.safe_dump(whole, sort_keys=False, width=200)


def pull_steps() -> list[dict[str, Any]]:
    """Steps by which a flow run comes by its code.

    From the checkout here or, where SHEPHERD_REPOSITORY names a repository, from there at the commit of the checkout
    here: workers may then be on any machine. A `UserError` where that commit is not what runs here, or not there.
    """
    repository = os.environ.get(REPOSITORY)
    if not repository:
        return [{SET_DIRECTORY: {"directory": str(home())}}]
    return [{CLONE: {"repository": repository, "commit_sha": _pin(repository)}}]


def _pin(repository: str) -> str:
    """The commit of this checkout, which is in the repository."""
    given = f"{REPOSITORY}={redact(repository)}"
    if redact(repository) != repository:
        raise UserError(f"{given}: deployments are stored, so no password may stand in it; git asks its own helpers")
    code = code_version()
    if code["commit"] == UNKNOWN or code["dirty"] is not False:
        raise UserError(f"{given}: workers would run another code than this checkout, which has changes; commit them")
    with tempfile.TemporaryDirectory() as folder:  # one that has the commit itself would not ask for it
        git = ["git", "-C", folder]
        try:
            for words in (["init"], ["fetch", "--depth=1", "--filter=tree:0", repository, code["commit"]]):
                subprocess.run([*git, *words], check=True, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
            raise UserError(
                f"{given}: commit {code['commit'][:10]} of this checkout cannot be had from there ({reason}); push it"
            ) from None
    return code["commit"]


def entrypoint(algo: str, kind: str = "train") -> str:
    """File and function where a worker finds a flow of an algorithm."""
    return f"flows/{kind}.py:{_function(algo, kind)}"


def _function(algo: str, kind: str) -> str:
    return f"{kind}_{algo.replace('-', '_')}"


def find_flow(name: str, kind: str, flow_of: Callable[[str], Any]) -> Any:
    """The flow of an algorithm, a plugin's too, by the name in its entrypoint: a module's `__getattr__`.

    An AttributeError for other names than `<kind>_...`, a UserError where no algorithm here has it.
    """
    if not name.startswith(f"{kind}_"):
        raise AttributeError(f"module 'flows.{kind}' has no attribute {name!r}")
    plugins.load()
    for algo in ALGORITHMS:
        if name == _function(algo, kind):
            return flow_of(algo)
    raise UserError(f"{name}: no algorithm here has this flow; start the worker with its plugin in {plugins.VARIABLE}")


def deployments() -> Iterator[Deployment]:
    """Every deployment: those of each algorithm, then the other flows."""
    plugins.load()
    for algo in ALGORITHMS:
        train, sweep = entrypoint(algo), entrypoint(algo, "sweep")
        on = (("local", "default", {}), ("gpu", "gpu", {"accelerator": "cuda"}))
        for pool, name, chosen in on:
            about = f"Train {algo} on pool {pool}."
            yield Deployment(train, name, ("train", algo, pool), about, pool, parameters=chosen)
        for pool, name, chosen in on:
            about = f"Find hyperparameters of {algo}, with the trials on pool {pool}."
            yield Deployment(sweep, name, ("sweep", algo, pool), about, queue=DRIVERS, parameters=chosen)
    for flow, (place, about) in OTHERS.items():
        yield Deployment(place, "default", (flow, "local"), about)


def deploy() -> list[str]:
    """Make the pools and all deployments, or bring them up to date; their names, as `train-ppo/default`."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema
    from prefect.workers.process import ProcessWorker

    template, names, pull = ProcessWorker.get_default_base_job_template(), [], pull_steps()
    with get_client(sync_client=True) as client:

        @functools.cache  # an algorithm has two deployments of each of its flows
        def of_flow(entrypoint: str) -> tuple[str, str, dict[str, Any]]:
            flow = load_flow_from_entrypoint(str(home() / entrypoint), use_placeholder_flow=False)
            description = (flow.description or "").partition("\n\nArgs:")[0]
            return (
                flow.name,
                description,
                {
                    "flow_id": client.create_flow_from_name(flow.name),
                    "version": flow.version,
                    "parameter_openapi_schema": parameter_schema(flow).model_dump(exclude_unset=True),
                },
            )

        for pool in POOLS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
            # Each worker has a limit of its own; earlier versions set one for all machines together.
            client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=None))
            queue = client.read_work_queue_by_name("default", work_pool_name=pool)
            client.update_work_queue(queue.id, concurrency_limit=None)
        for rule in client.read_automations_by_name(OLD_RULE):
            client.delete_automation(rule.id)
        for one in deployments():
            name, description, facts = of_flow(one.entrypoint)
            client.create_deployment(
                **facts,
                name=one.name,
                entrypoint=one.entrypoint,
                tags=list(one.tags),
                description=f"{one.about}\n\n{description}",
                parameters=dict(one.parameters),
                enforce_parameter_schema=True,
                pull_steps=pull,
                work_pool_name=one.pool,
                work_queue_name=one.queue,
            )
            names.append(f"{name}/{one.name}")
    return names


if __name__ == "__main__":
    sys.stdout.write(prefect_yaml())
