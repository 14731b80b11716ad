"""MLflow's server behind a password: `mlflow server --app-name shepherd` (an entry point of this package).

MLflow's own `--app-name basic-auth` keeps a database of users and needs further packages. Here is one user, whose name
and password are in the server's environment, where MLflow's clients look for theirs.
"""

from __future__ import annotations

import base64
import hmac
import os
from typing import Any

from fastapi.responses import PlainTextResponse

HINT = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are wrong or missing; `make up` keeps them in .env"


def create_app() -> Any:
    """MLflow's application, for who knows the password."""
    from mlflow.server.fastapi_app import app  # seconds that only the server waits for

    return guarded(app, os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"])


def guarded(app: Any, user: str, password: str) -> Any:
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
