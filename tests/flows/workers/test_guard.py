"""Shepherd's servers refuse requests without the password, with a foreign host name, or from another site."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from flows.workers.guard import guard, is_health
from flows.workers.prefect_app import protected_api

RIGHT = "shepherd:right"
FOREIGN = (b"origin", b"https://evil.example")
WEBSOCKET = "WEBSOCKET"


def basic(login: str) -> tuple[bytes, bytes]:
    """Return the Authorization header for `user:password`."""
    return b"authorization", b"Basic " + base64.b64encode(login.encode())


def routes(app: Any) -> set[tuple[str, str]]:
    """Return method and path of each route of a FastAPI application, also of mounted ones; "1" for each parameter."""
    return {(method, re.sub(r"{[^}]*}|<[^>]*>", "1", path) or "/") for method, path in _below(app.routes)}


def _below(found: Any, before: str = "") -> Iterator[tuple[str, str]]:
    for route in found:
        router = getattr(route, "original_router", None)  # FastAPI since 0.137
        path = before + getattr(route, "path", "")
        if router is not None:
            yield from _below(router.routes, before)
        elif inner := getattr(route, "routes", None):
            yield from _below(inner, path)
        elif "WebSocket" in type(route).__name__:
            yield WEBSOCKET, path
        else:
            for method in getattr(route, "methods", None) or ("GET", "POST", "PUT", "DELETE"):
                yield method, path
        for rule in _rules_of_flask(route):
            for method in rule.methods or ():
                yield method, f"{before}{rule.rule}"


def _rules_of_flask(route: Any) -> list[Any]:
    """Return the rules of a Flask application that is mounted."""
    flask: Any = getattr(getattr(route, "app", None), "app", None)
    return list(flask.url_map.iter_rules()) if hasattr(flask, "url_map") else []


def ask(app: Any, method: str, path: str, *headers: tuple[bytes, bytes], host: bytes = b"127.0.0.1:80") -> Any:
    """Send a request without a server; return status and headers, or whether a websocket was accepted."""
    return asyncio.run(_ask(app, method, path, [(b"host", host), *headers]))


async def _ask(app: Any, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> Any:
    http = method != WEBSOCKET
    incoming: list[Any] = [{"type": "http.request", "body": b"{}"}]
    if not http:
        token = json.dumps({"type": "auth", "token": "guessed"})
        incoming = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": token}]
        headers = [*headers, (b"sec-websocket-protocol", b"prefect")]
    sent: list[Any] = []

    async def receive() -> Any:
        return (
            incoming.pop(0)
            if incoming
            else {"type": "http.disconnect" if http else "websocket.disconnect", "code": 1000}
        )

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http" if http else "websocket", "asgi": {"version": "3.0"}, "http_version": "1.1"}
    scope |= {"method": method} if http else {"subprotocols": ["prefect"]}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"scheme": "http" if http else "ws", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
    await app(scope, receive, send)
    if http:
        return sent[0]["status"], dict(sent[0]["headers"])
    return any("auth_success" in message.get("text", "") for message in sent) or sent[-1]["type"] != "websocket.close"


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers every request with 200 and accepts every websocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/", "", 401),
        ("/", "shepherd:wrong", 401),
        ("/", "shepherd:", 401),
        ("/api/2.0/mlflow/runs/create", "", 401),
        ("/health/../api", "", 401),
        ("/", RIGHT, 200),
        ("/health", "", 200),
    ],
)
def test_guard_requires_password(path: str, given: str, status: int) -> None:
    headers = [basic(given)] if given else []
    assert ask(guard(answering, RIGHT, is_health("/health")), "GET", path, *headers)[0] == status


def test_guard_refuses_post_to_open_path() -> None:
    assert ask(guard(answering, RIGHT, is_health("/health")), "POST", "/health")[0] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:4200", 200),
        (b"localhost:8000", 200),  # the end of an SSH tunnel has another port
        (b"[::1]:4200", 200),
        (b"lab.example", 200),
        (b"evil.example:4200", 403),
        (b"127.0.0.1.evil.example", 403),
        (b"evil@127.0.0.1", 200),  # no browser sends it; the name is 127.0.0.1
        (b"[", 403),
        (b"", 403),
    ],
)
def test_guard_refuses_unknown_host_names(host: bytes, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_ALLOWED_HOSTS", "lab.example, Other.example")
    assert ask(guard(answering, RIGHT, is_health()), "GET", "/", basic(RIGHT), host=host)[0] == status
    if status == 403:  # also for a health check
        assert ask(guard(answering, RIGHT, is_health("/")), "GET", "/", host=host)[0] == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"http://127.0.0.1:80", 200),
        (b"https://other.example", 200),  # a proxy that sets the Host header to the server's own name
        (b"http://127.0.0.1:9999", 403),  # a server of another user on this machine
        (b"http://localhost:80", 403),
        (b"null", 403),
        (FOREIGN[1], 403),
    ],
)
def test_guard_refuses_foreign_origins(origin: bytes, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_ALLOWED_HOSTS", "lab.example, Other.example")
    answer, headers = ask(guard(answering, RIGHT, is_health()), "GET", "/", basic(RIGHT), (b"origin", origin))
    assert answer == status
    assert not any(name.startswith(b"access-control") for name in headers)


def test_guard_closes_unauthorized_websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    app = guard(answering, RIGHT, is_health("/health"))
    assert ask(app, WEBSOCKET, "/health", basic(RIGHT))
    assert not ask(app, WEBSOCKET, "/health")
    assert not ask(app, WEBSOCKET, "/health", basic(RIGHT), FOREIGN)


@pytest.fixture(scope="module", params=["api", "server"])
def prefect(request: pytest.FixtureRequest, home: Path) -> Iterator[tuple[Any, set[tuple[str, str]], bool]]:
    """Prefect as served by a single command or by `make up`; all its routes; whether it has pages."""
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

    served = request.param == "server"
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: RIGHT}):
        app = protected_api(RIGHT, pages=served)
        yield (
            app,
            routes(create_app(ephemeral=not served, final=True)),
            served,
        )  # the same application, from Prefect's cache


def assert_guarded(app: Any, method: str, path: str) -> None:
    """The route refuses requests without the password, with a foreign host name, or from another site."""
    for headers in ((), (basic("shepherd:wrong"),)):
        status, answered = ask(app, method, path, *headers)
        assert status == 401, (method, path)
        assert not any(name.startswith(b"access-control") for name in answered)
    for status, answered in (
        ask(app, method, path, basic(RIGHT), host=b"evil.example"),
        ask(app, method, path, basic(RIGHT), FOREIGN),
    ):
        assert status == 403, (method, path)
        assert not any(name.startswith(b"access-control") for name in answered)


@pytest.mark.slow
def test_prefect_routes_require_password(prefect: tuple[Any, set[tuple[str, str]], bool]) -> None:
    app, known, pages = prefect
    assert {(WEBSOCKET, "/api/events/in"), ("POST", "/api/deployments/"), ("DELETE", "/api/flow_runs/1")} <= known
    assert len(known) > 200
    for method, path in known - {("GET", "/api/health"), ("HEAD", "/api/health")}:
        if method == WEBSOCKET:
            assert not ask(app, method, path), path
            assert not ask(app, method, path, basic(RIGHT), host=b"evil.example"), path
            assert not ask(app, method, path, basic(RIGHT), FOREIGN), path
            continue
        if pages and method in ("GET", "HEAD") and not path.startswith("/api"):  # files of Prefect's package
            assert ask(app, method, path, host=b"evil.example")[0] == 403
        else:
            assert_guarded(app, method, path)
    assert ask(app, "GET", "/api/version", basic(RIGHT))[0] == 200
    assert ask(app, "GET", "/api/health")[0] == 200
    assert ask(app, "GET", "/api/health", host=b"evil.example")[0] == 403


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # MLflow itself warns
def test_mlflow_routes_require_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.server.fastapi_app import app as whole

    from flows.workers.mlflow_app import create_app

    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{home}/.shepherd/mlflow.db")
    app, known = create_app(RIGHT), routes(whole)
    assert {("POST", "/api/2.0/mlflow/runs/create"), ("GET", "/get-artifact")} <= known and len(known) > 200
    for method, path in known - {("GET", "/health"), ("HEAD", "/health")}:
        assert_guarded(app, method, path)
    assert ask(app, "GET", "/version", basic(RIGHT))[0] == 200
    assert ask(app, "GET", "/health")[0] == 200


@pytest.mark.filterwarnings("default")
def test_mlflow_app_creates_missing_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.workers.mlflow_app import create_app
    from flows.workers.servers import own_login, password_file

    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    app = create_app()
    assert ask(app, "GET", "/")[0] == 401
    assert ask(app, "GET", "/", basic(own_login()))[0] == 200
    assert password_file().stat().st_mode & 0o777 == 0o600


@pytest.mark.filterwarnings("default")
def test_model_server_routes_require_password() -> None:
    from mlflow.pyfunc import scoring_server

    whole = scoring_server.init(MagicMock())
    app, known = guard(whole, RIGHT, is_health("/ping", "/health")), routes(whole)
    assert ("POST", "/invocations") in known
    for method, path in known - {("GET", "/ping"), ("GET", "/health")}:
        assert_guarded(app, method, path)
    assert ask(app, "GET", "/version", basic(RIGHT))[0] == 200
