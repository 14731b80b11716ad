"""Creation of the SQLite databases of Prefect and MLflow: `python -m flows.workers.databases`.

It takes ten seconds. The set-up of the project runs it, so that the first training does not have to wait.
"""

from __future__ import annotations

from flows.settings import tracking_uri
from flows.tracking.mlflow_store import prepare_store
from flows.workers.local_api import prefect_api


def main() -> None:
    """Create the databases of Prefect and MLflow in this project's state folder, unless they exist."""
    with prefect_api():
        prepare_store(tracking_uri())


if __name__ == "__main__":
    main()
