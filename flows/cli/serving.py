"""Commands `shepherd ui` and `shepherd serve`, which run a web server until Ctrl-C.

MLflow and Optuna have their own server commands. These serve every user of the machine without a password, and
`mlflow ui` can leave processes running after its end. The servers of this module require a password and run in the
process of the command, so they end with it.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

from flows.process.network import is_server
from flows.report.command_lines import short_path
from flows.settings import LOOPBACK, artifact_root, tracking_uri
from flows.sweeps.folder import SweepFolder, open_storage
from flows.tracking.mlflow_store import prepare_store
from flows.workers.guard import USER, guard, is_health
from flows.workers.servers import own_login, password_file
from rlcore.errors import UserError
from rlcore.system.printable import print_safely
from rlcore.system.secrets import redact


def ui(port: int, sweep: str = "") -> None:
    """Serve the web pages of MLflow, or Optuna's dashboard of a sweep."""
    if sweep:
        _serve(_optuna(sweep), port, f"sweep {sweep}")
        return
    store = tracking_uri()
    if is_server(store):
        raise UserError(
            f"MLFLOW_TRACKING_URI={redact(store)}: MLflow is already a server at this address; open it in a browser"
        )
    prepare_store(store)
    from flows.workers import mlflow_app  # FastAPI

    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": store,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": artifact_root(),
        **mlflow_app.cross_site_settings(port),
    }
    _serve(mlflow_app.create_app(own_login()), port, "MLflow")


def serve(model: str, port: int) -> None:
    """Serve a registered model over HTTP with MLflow's scoring server."""
    if ":/" not in model and not (Path(model) / "MLmodel").exists():  # for example a run directory
        raise UserError(
            f"{model}: not a registered model; use models:/NAME@ALIAS, for example models:/ppo-CartPole-v1@champion "
            "(`shepherd registry list` lists all models)"
        )
    with _port(port):  # report a bad port before loading the model
        pass
    from mlflow.pyfunc import scoring_server  # takes seconds

    from flows.registry.served_model import ServedModel  # imports mlflow.pyfunc

    app = scoring_server.init(ServedModel(scoring_server.load_model_with_mlflow_config(model)))
    _serve(guard(app, own_login(), is_health("/ping", "/health")), port, model)


def _optuna(name: str) -> Any:
    """Return Optuna's dashboard of the sweep `name` as a web application."""
    try:
        from optuna_dashboard import wsgi  # an optional dependency  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "--sweep: the package optuna-dashboard is not installed; install it with pip install -e '.[dashboard]'"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in Starlette, but MLflow uses it, too
        from fastapi.middleware.wsgi import WSGIMiddleware  # only the dashboard needs it

    folder = SweepFolder.existing(name)
    return guard(WSGIMiddleware(wsgi(open_storage(folder.storage(folder.read())))), own_login(), is_health())


def _port(port: int) -> socket.socket:
    if not 0 < port < 65536:
        raise UserError(f"--port {port}: must be from 1 to 65535")
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise UserError(f"--port {port}: cannot be used ({error.strerror}); choose another port") from None


def _serve(app: Any, port: int, what: str) -> None:
    """Serve a web application on the loopback address until a signal such as Ctrl-C ends the process."""
    import uvicorn  # only servers need it

    with _port(port) as listening:
        port = listening.getsockname()[1]
        login = own_login()
        password = login.partition(":")[2] if sys.stdout.isatty() else f"in {short_path(password_file())}"
        print_safely(f"{what}: http://{LOOPBACK}:{port} - user {USER}, password {password}; Ctrl-C ends it", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
        uvicorn.Server(config).run([listening])
