"""Work pools and deployments, made through the API of the server that PREFECT_API_URL names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import yaml

from flows.settings import home
from rlcore import plugins

# Earlier versions had Prefect call silent flow runs crashed; flows.workers.worker does it now.
OLD_RULE = "shepherd: a flow run that gives no sign of life has crashed"
# What every algorithm gets: deployment -> its pool and the parameters it sets (not among the overrides, which a
# user's own replace as a whole).
DEPLOYMENTS = {"default": ("local", {}), "gpu": ("gpu", {"accelerator": "cuda"})}


def prefect_yaml() -> str:
    """The deployments as `prefect deploy --all` reads them, for servers that `make up` did not start.

    python -m flows.workers.pools > prefect.yaml
    """
    from rlcore.algorithms import ALGORITHMS

    plugins.load()
    deployments = [
        {"name": name, "entrypoint": entrypoint(algo), "tags": [algo], "work_pool": {"name": pool}}
        | ({"parameters": dict(parameters)} if parameters else {})
        for algo in ALGORITHMS
        for name, (pool, parameters) in DEPLOYMENTS.items()
    ]
    head = "# Made by `python -m flows.workers.pools`; `make up` deploys the same through the API of its server.\n"
    return head + yaml.safe_dump({"name": "shepherd", "deployments": deployments}, sort_keys=False)


def entrypoint(algo: str) -> str:
    """Where a worker finds the training flow of an algorithm."""
    return f"flows/train.py:train_{algo.replace('-', '_')}"


def deploy(limits: Mapping[str, int | None]) -> list[str]:
    """Make the pools and every algorithm's deployments, or bring them up to date; the algorithms.

    A limit is how many flow runs a pool runs at once, None as many as its workers take. A deployment is
    `train-<algorithm>/<name of DEPLOYMENTS>`: the flow as a worker will load it, from the checkout.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema
    from prefect.workers.process import ProcessWorker

    from rlcore.algorithms import ALGORITHMS

    plugins.load()
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for pool, limit in limits.items():
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
            client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=limit))
        for rule in client.read_automations_by_name(OLD_RULE):
            client.delete_automation(rule.id)
        for algo in ALGORITHMS:
            flow = load_flow_from_entrypoint(str(home() / entrypoint(algo)), use_placeholder_flow=False)
            for name, (pool, parameters) in DEPLOYMENTS.items():
                client.create_deployment(
                    flow_id=client.create_flow_from_name(flow.name),
                    name=name,
                    entrypoint=entrypoint(algo),
                    version=flow.version,
                    description=(flow.description or "").partition("\n\nArgs:")[0],
                    tags=[algo],
                    parameters=parameters,
                    parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
                    enforce_parameter_schema=True,
                    pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(home())}}],
                    work_pool_name=pool,
                )
    return list(ALGORITHMS)


if __name__ == "__main__":
    print(prefect_yaml(), end="")
