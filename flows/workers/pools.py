"""Work pools and deployments, made through the API of the server that PREFECT_API_URL names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import yaml

from flows.settings import home
from rlcore import plugins

# Earlier versions had Prefect call silent flow runs crashed; flows.workers.worker does it now.
OLD_RULE = "shepherd: a flow run that gives no sign of life has crashed"
DRIVERS = "drivers"  # queue of pool local without a limit: a sweep only waits, and must not keep its trials out


class Deployment(NamedTuple):
    """What an algorithm gets, as `<kind>-<algorithm>/<name>`.

    Attributes:
        kind: "train" or "sweep".
        name: "default" or "gpu".
        pool: whose workers run the flow.
        queue: of that pool.
        parameters: that it sets (not among the overrides, which a user's own replace as a whole).
    """

    kind: str
    name: str
    pool: str
    queue: str = "default"
    parameters: Mapping[str, str] = {}

    def entrypoint(self, algo: str) -> str:
        """Where a worker finds the flow."""
        return f"flows/{self.kind}.py:{self.kind}_{algo.replace('-', '_')}"


DEPLOYMENTS = (
    Deployment("train", "default", "local"),
    Deployment("train", "gpu", "gpu", parameters={"accelerator": "cuda"}),
    Deployment("sweep", "default", "local", DRIVERS),
    Deployment("sweep", "gpu", "local", DRIVERS, {"accelerator": "cuda"}),
)


def prefect_yaml() -> str:
    """The deployments as `prefect deploy --all` reads them, for servers that `make up` did not start.

    python -m flows.workers.pools > prefect.yaml
    """
    from rlcore.algorithms import ALGORITHMS

    deployments = [
        {"name": made.name, "entrypoint": made.entrypoint(algo), "tags": [algo]}
        | {"work_pool": {"name": made.pool, "work_queue_name": made.queue}}
        | ({"parameters": dict(made.parameters)} if made.parameters else {})
        for algo in ALGORITHMS
        for made in DEPLOYMENTS
    ]
    head = "# Made by `python -m flows.workers.pools`; `make up` deploys the same through the API of its server.\n"
    return head + yaml.safe_dump({"name": "shepherd", "deployments": deployments}, sort_keys=False)


def deploy(limits: Mapping[str, int | None]) -> list[str]:
    """Make the pools and every algorithm's deployments, or bring them up to date; the algorithms.

    A limit is how many trainings a pool runs at once, None as many as its workers take. A deployment is one of
    DEPLOYMENTS: the flow as a worker will load it, from the checkout.
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
            # Of its queue "default" alone: those who only wait for trainings are not to take their places.
            client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=None))
            queue = client.read_work_queue_by_name("default", work_pool_name=pool)
            client.update_work_queue(queue.id, concurrency_limit=limit)
        for rule in client.read_automations_by_name(OLD_RULE):
            client.delete_automation(rule.id)
        for algo in ALGORITHMS:
            for made in DEPLOYMENTS:
                place = made.entrypoint(algo)
                flow = load_flow_from_entrypoint(str(home() / place), use_placeholder_flow=False)
                client.create_deployment(
                    flow_id=client.create_flow_from_name(flow.name),
                    name=made.name,
                    entrypoint=place,
                    version=flow.version,
                    description=(flow.description or "").partition("\n\nArgs:")[0],
                    tags=[algo],
                    parameters=dict(made.parameters),
                    parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
                    enforce_parameter_schema=True,
                    pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(home())}}],
                    work_pool_name=made.pool,
                    work_queue_name=made.queue,
                )
    return list(ALGORITHMS)


if __name__ == "__main__":
    print(prefect_yaml(), end="")
