"""Prefect's application behind the access check: the API of one command, and the server of `make up`.

    python -m flows.workers.prefect_app --host HOST --port PORT

runs the server of `make up`, with Prefect's pages and services. It replaces `prefect server start`, which answers
requests for any host name and lets pages of any site read its answers.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from flows.workers.guard import guard, is_health

LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
HINT = "`make up` writes it to .env as PREFECT_API_AUTH_STRING."


def protected_api(login: str, pages: bool = False) -> Any:
    """Return Prefect's application, which answers only requests with `user:password`.

    The pages are files that are identical in every installation. They can be read without the password, because they
    ask for it themselves. Prefect itself checks the password of a websocket, in its first message: some of its clients
    do not send the header, and browsers cannot send it.

    Args:
        login: `user:password`.
        pages: include the pages and all background services.

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
    """Serve until a signal arrives."""
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
