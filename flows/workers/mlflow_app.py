"""MLflow's server, opening on runs, and behind a password where there is one: `mlflow server --app-name shepherd`.

`mlflow ui` takes it too; the name is an entry point of this package. MLflow's own `--app-name basic-auth` keeps a
database of users and needs further packages. Here is one user, whose name and password are in the server's environment,
where MLflow's clients look for theirs.
"""

from __future__ import annotations

import base64
import hmac
import os
from typing import Any

from fastapi.responses import HTMLResponse, PlainTextResponse

HINT = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are wrong or missing; `make up` keeps them in .env"


# MLflow 3.17 opens on GenAI, whatever an experiment is tagged as, and with its assistant beside it: the browser's own
# settings decide, so they are set where nobody has chosen yet.
FIRST_PAGE = """<!doctype html><title>MLflow</title><script>
const wanted = {"mlflow.workflowType_v1": '"machine_learning"', "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true"}
for (const key in wanted) if (localStorage.getItem(key) === null) localStorage.setItem(key, wanted[key])
location.replace("./?runs" + location.hash)
</script>"""


def create_app() -> Any:
    """MLflow's application, for who knows the password that is in the environment, if there is one."""
    from mlflow.server.fastapi_app import app  # seconds that only the server waits for

    password = os.environ.get("MLFLOW_TRACKING_PASSWORD")
    opened = opening_on_runs(app)
    return guard(opened, os.environ["MLFLOW_TRACKING_USERNAME"], password) if password else opened


def opening_on_runs(app: Any) -> Any:
    """An ASGI application whose page, `/` without a query, first tells a new browser to show runs and models."""

    async def first(scope: Any, receive: Any, send: Any) -> None:
        opening = scope["type"] == "http" and scope["path"] == "/" and not scope["query_string"]
        await (HTMLResponse(FIRST_PAGE) if opening else app)(scope, receive, send)

    return first


def guard(app: Any, user: str, password: str) -> Any:
    """An ASGI application that answers only requests with this name and password; `/health` answers everybody."""
    expected = b"Basic " + base64.b64encode(f"{user}:{password}".encode())

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        answer = app
        if scope["type"] != "lifespan" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, expected):
                answer = PlainTextResponse(HINT, 401, {"WWW-Authenticate": 'Basic realm="MLflow"'})
        await answer(scope, receive, send)

    return guard
