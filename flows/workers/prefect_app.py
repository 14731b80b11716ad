"""Prefect's web application behind the access check of `flows.workers.guard`.

It is used by the Prefect server of `make up`, and by the private server of a single command (`local_api.py`). The
command

    python -m flows.workers.prefect_app --host HOST --port PORT

runs the server of `make up`, with Prefect's web pages and background services. It replaces `prefect server start`,
which answers requests for any host name and lets web pages of any site read its answers.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from flows.workers.guard import guard, is_health

LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
HINT = "`make up` writes it to .env as PREFECT_API_AUTH_STRING."


def protected_api(login: str, pages: bool = False) -> Any:
    """Return Prefect's ASGI application behind the access check of `guard`.

    Two kinds of requests need no password in their headers. First, web pages: they contain no data of the user, and ask
    for the password before they request data. Second, websockets: browsers cannot send the header, and some clients of
    Prefect do not. The code of Prefect checks the password in the first message of a websocket.

    Args:
        login: `user:password` that requests must contain.
        pages: True includes Prefect's web pages and all background services; False serves only the API.

    Returns:
        The ASGI application.
    """
    from prefect.server.api.server import create_app  # seconds

    app, health = create_app(ephemeral=not pages, final=True), is_health("/api/health")

    def is_open(scope: Any) -> bool:
        if scope["type"] == "websocket" or health(scope):
            return True
        page = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith("/api")
        return pages and page

    return guard(app, login, is_open, HINT if pages else "")


def main() -> None:
    """Run the Prefect server of `make up` until a signal arrives. This is the entry point of the program."""
    parser = argparse.ArgumentParser(prog="python -m flows.workers.prefect_app", description="Serve Prefect.")
    parser.add_argument("--host", required=True, help="address to listen at")
    parser.add_argument("--port", type=int, required=True, help="port to listen at")
    options = parser.parse_args()
    import uvicorn  # imported here, because only the server needs it
    from prefect.settings import PREFECT_SERVER_API_KEEPALIVE_TIMEOUT, PREFECT_SERVER_LOGGING_LEVEL

    uvicorn.run(
        protected_api(os.environ[LOGIN], pages=True),
        host=options.host,
        port=options.port,
        timeout_keep_alive=PREFECT_SERVER_API_KEEPALIVE_TIMEOUT.value(),
        log_level=PREFECT_SERVER_LOGGING_LEVEL.value().lower(),
    )


if __name__ == "__main__":
    main()
