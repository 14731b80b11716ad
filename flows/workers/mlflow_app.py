"""MLflow's web application behind the access check of `flows.workers.guard`. Its start page shows training runs.

`shepherd ui` and `mlflow server --app-name shepherd` start it; `shepherd` is an entry point of this package. MLflow's
application with a password, `--app-name basic-auth`, is not used, because it needs a database of users and further
packages. This application has only one user.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from fastapi.responses import HTMLResponse

from flows.settings import LOOPBACK, allowed_hosts, server_host
from flows.workers.guard import USER, guard, is_health
from flows.workers.servers import own_login

HINT = (
    "After `make up`, user and password are MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in .env; "
    "`shepherd ui` prints the place of its own password."
)


# MLflow 3.17 opens its GenAI pages and its assistant, regardless of the tags of an experiment. Only settings in the
# browser change this, so this page sets them if they are not set yet.
FIRST_PAGE = """<!doctype html><title>MLflow</title><script>
const wanted = {"mlflow.workflowType_v1": '"machine_learning"', "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true"}
for (const key in wanted) if (localStorage.getItem(key) === null) localStorage.setItem(key, wanted[key])
location.replace("./?runs" + location.hash)
</script>"""


def create_app(login: str = "") -> Any:
    """Return MLflow's ASGI application behind the access check of `guard`.

    Args:
        login: `user:password` that requests must contain. The default is the login in MLflow's environment variables,
            or, if they are not set, that of the servers of this SHEPHERD_HOME.

    Returns:
        The application.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about MLflow's own code
        from mlflow.server.fastapi_app import app  # takes seconds, so only the server imports it

    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME", USER), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    login = login or (f"{user}:{password}" if password else own_login())
    return guard(redirect_to_runs(app), login, is_health("/health"), HINT)


def cross_site_settings(port: int) -> dict[str, str]:
    """Return environment variables for MLflow's built-in check of host name and origin, for a server on this port.

    With these variables, MLflow permits the requests that `guard` permits.
    """
    names = {LOOPBACK, "localhost", server_host()}
    origins = [f"http://{name}:{port}" for name in sorted(names)]
    origins += [f"{scheme}://{name}" for name in allowed_hosts() for scheme in ("http", "https")]
    hosts = [*(f"{name}:{port}" for name in sorted(names)), *allowed_hosts()]
    return {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def redirect_to_runs(app: Any) -> Any:
    """Wrap MLflow's ASGI application so that its start page shows training runs and models.

    MLflow's pages read from the browser's local storage what they show first. The page `/` of the returned application
    sets these values, unless they are set, and then opens MLflow's start page.
    """

    async def first(scope: Any, receive: Any, send: Any) -> None:
        opening = scope["type"] == "http" and scope["path"] == "/" and not scope["query_string"]
        await (HTMLResponse(FIRST_PAGE) if opening else app)(scope, receive, send)

    return first
