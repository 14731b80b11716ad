"""`shepherd ui` and `shepherd serve`: a server for this machine's owner, until Ctrl-C.

MLflow's and Optuna's own commands serve every user of the machine, without a password, and `mlflow ui` leaves processes
behind. Here it is one process, which ends with the command and asks for the password of this home.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from typing import Any

from flows.process.network import is_server
from flows.report.command_lines import short_path
from flows.settings import LOOPBACK, artifact_root, tracking_uri
from flows.sweeps.folder import SweepFolder
from flows.sweeps.storage import open_storage
from flows.tracking.mlflow_store import prepare_store
from flows.workers.dotenv import USER
from flows.workers.guard import guard, is_health
from flows.workers.servers import own_login, password_file
from rlcore.errors import UserError
from rlcore.system.printable import print_safely
from rlcore.system.secrets import redact


def ui(port: int, sweep: str = "") -> None:
    """Show the runs in MLflow's pages, or a sweep in Optuna's."""
    if sweep:
        _serve(_optuna(sweep), port, f"sweep {sweep}")
        return
    store = tracking_uri()
    if is_server(store):
        raise UserError(f"MLFLOW_TRACKING_URI={redact(store)}: a server shows these runs; open it in a browser")
    prepare_store(store)
    from flows.workers import mlflow_app  # FastAPI

    os.environ |= {
        "_MLFLOW_SERVER_FILE_STORE": store,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": artifact_root(),
        **mlflow_app.cross_site_settings(port),
    }
    _serve(mlflow_app.create_app(own_login()), port, "MLflow")


def serve(model: str, port: int) -> None:
    """Answer requests for actions with a registered model, as MLflow's scoring server does."""
    with _port(port):  # a mistake is told before the model is loaded
        pass
    from mlflow.pyfunc import scoring_server  # seconds

    app = scoring_server.init(scoring_server.load_model_with_mlflow_config(model))
    _serve(guard(app, own_login(), is_health("/ping", "/health")), port, model)


def _optuna(name: str) -> Any:
    """Return Optuna's pages on the study of a sweep."""
    try:
        from optuna_dashboard import wsgi  # of an extra  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "Optuna's pages need optuna-dashboard, which is not installed; pip install -e '.[dashboard]' brings it"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Starlette will drop it one day; MLflow stands on it as well
        from starlette.middleware.wsgi import WSGIMiddleware  # `ui` of a sweep alone wants it

    folder = SweepFolder.existing(name)
    return guard(WSGIMiddleware(wsgi(open_storage(folder.storage(folder.read())))), own_login(), is_health())


def _port(port: int) -> socket.socket:
    if not 0 < port < 65536:
        raise UserError(f"--port {port}: must be a port, 1 to 65535")
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise UserError(f"--port {port}: cannot be used ({error.strerror}); choose another one") from None


def _serve(app: Any, port: int, what: str) -> None:
    """Serve an application on this machine alone until a signal comes."""
    import uvicorn  # of servers alone

    with _port(port) as listening:
        port = listening.getsockname()[1]
        login = own_login()
        password = login.partition(":")[2] if sys.stdout.isatty() else f"in {short_path(password_file())}"
        print_safely(f"{what}: http://{LOOPBACK}:{port} - user {USER}, password {password}; Ctrl-C ends it", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
        uvicorn.Server(config).run([listening])
