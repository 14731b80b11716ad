"""`python -m flows.workers.databases`: make Prefect's and MLflow's own databases, which takes ten seconds.

The first command would; set-up does it before.
"""

from __future__ import annotations

from flows.settings import tracking_uri
from flows.tracking.mlflow_store import prepare_store
from flows.workers.local_api import prefect_api


def main() -> None:
    """Make those that this project keeps in files of its own and that are not there yet."""
    with prefect_api():
        prepare_store(tracking_uri())


if __name__ == "__main__":
    main()
