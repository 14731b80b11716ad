"""PostgreSQL as the database of the servers: a real server, started as by `make up DB=postgres`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dotenv import dotenv_values

from flows.settings import DATABASE, database_url
from flows.sweeps.folder import SweepFolder
from flows.sweeps.study import Study
from flows.workers import postgres, servers, up
from rlcore.errors import UserError
from tests.flows.sweeps.fake import make_sweep
from tests.processes import ROOT, environment, free_port, wait_for
from tests.soaking import heavy

pytestmark = heavy

installed = bool(list(postgres.DEBIAN.glob("*/bin/initdb")))
with_postgres = pytest.mark.skipif(not installed, reason=f"PostgreSQL is not installed: {postgres.INSTALL}")
HERE = "127.0.0.2"  # an address of this machine other than the default of the servers


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATABASE, raising=False)
    monkeypatch.delenv("SHEPHERD_HOST", raising=False)


@pytest.mark.parametrize(
    ("named", "service", "driver", "expected_url"),
    [
        ("postgresql://me:x@db:7/lab", "mlflow", "psycopg2", "postgresql+psycopg2://me:x@db:7/lab_mlflow"),
        ("postgres://me@db", "prefect", "asyncpg", "postgresql+asyncpg://me@db/shepherd_prefect"),
        ("postgresql+psycopg2://db/?sslmode=require", "optuna", "", "postgresql://db/shepherd_optuna?sslmode=require"),
        ("postgresql://db/a?sslmode=require", "prefect", "asyncpg", "postgresql+asyncpg://db/a_prefect?ssl=require"),
    ],
)
def test_database_url_is_separate_per_service(
    monkeypatch: pytest.MonkeyPatch, named: str, service: str, driver: str, expected_url: str
) -> None:
    assert database_url(service, driver) is None
    monkeypatch.setenv(DATABASE, named)
    assert database_url(service, driver) == expected_url


@pytest.mark.parametrize("named", ["mysql://me:hunter2@db/lab", "postgresql:///lab", "lab"])
def test_database_url_refuses_other_schemes_without_password(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv(DATABASE, named)
    with pytest.raises(UserError, match=f"^{DATABASE}=.*the form is postgresql://") as error:
        database_url("mlflow", "psycopg2")
    assert "hunter2" not in str(error.value)


def test_postgres_missing_package_names_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres, "DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="not installed on this machine; run `apt-get install -y postgresql`"):
        postgres.private_server(5442, "secret")
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(UserError, match=r"psycopg2.*pip install -e '\.\[postgres\]'"):
        postgres.check_driver()


@pytest.mark.parametrize(
    ("variables", "kind", "expected"),
    [
        ({}, "mysql", "DB=mysql: must be postgres"),
        ({"SHEPHERD_HOST": HERE}, "", f"SHEPHERD_HOST={HERE}: .*`make up DB=postgres`"),
        ({DATABASE: "mysql://db"}, "", f"{DATABASE}=mysql://db: not the address"),
    ],
)
def test_up_refuses_invalid_database_settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    kind: str,
    expected: str,
) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    (tmp_path / "flows").symlink_to(ROOT / "flows")
    monkeypatch.setattr(up, "configure_environment", lambda: None)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert up.main(["up", kind]) == 2
    output = capsys.readouterr().err
    assert output.startswith("shepherd: ") and all(part in output for part in expected.split(".*"))
    assert not list(servers.folder().glob("*.pid"))


class Site:
    """A checkout with `make up DB=postgres`, in a folder that the system's postgres user may not enter."""

    def __init__(self, home: Path) -> None:
        home.chmod(0o700)
        self.home = home
        for name in ("pyproject.toml", "flows", "rlcore", "conf"):
            (home / name).symlink_to(ROOT / name)
        ports = {key: str(free_port()) for key, _ in up.PORTS.values()}
        self.variables = environment(home, SHEPHERD_HOST=HERE, **ports)

    def servers(self, *command: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flows.workers.up", *command],
            cwd=self.home,
            env=self.variables | more,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    @property
    def database(self) -> str:
        return dotenv_values(self.home / ".env")[DATABASE] or ""

    def rows(self, service: str, sql: str) -> list[tuple[object, ...]]:
        import psycopg2

        connection = psycopg2.connect(f"{self.database}_{service}")
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("postgres"))
    try:
        output = site.servers("up", "postgres")
        assert f"http://{HERE}:" in output, output
        yield site
    finally:
        output = site.servers("down")
        assert "everything that `make up` started has ended" in output, output
        assert site.servers("status").startswith("nothing is running")


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site, with its settings in the environment of this process."""
    for key in ("SHEPHERD_HOME", "SHEPHERD_POSTGRES_PORT"):
        monkeypatch.setenv(key, site.variables[key])
    monkeypatch.setenv(DATABASE, site.database)
    return site


@with_postgres
@pytest.mark.slow
@pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")
def test_postgres_stores_prefect_and_mlflow_data(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key, value in dotenv_values(site.home / ".env").items():
        monkeypatch.setenv(key, value or "")
    from mlflow import MlflowClient

    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])  # as on another machine: only an address
    run = client.create_run(client.create_experiment("elsewhere"))
    client.log_text(run.info.run_id, "kept", "note.txt")
    assert (run.info.artifact_uri or "").startswith("mlflow-artifacts:/")
    assert [path.read_text() for path in site.home.glob(".shepherd/mlartifacts/**/note.txt")] == ["kept"]
    assert site.rows("mlflow", "select artifact_uri from runs") == [(run.info.artifact_uri,)]
    assert ("train-ppo",) in site.rows("prefect", "select name from flow")
    assert not list(site.home.glob(".shepherd/**/*.db"))


@with_postgres
@pytest.mark.slow
def test_up_refuses_to_change_running_database(site: Site) -> None:
    dotenv = site.home / ".env"
    dotenv.rename(site.home / "away")
    try:
        assert "prefect is running on another database (postgresql+asyncpg://shepherd:***@" in site.servers(
            "up", SHEPHERD_HOST=""
        )
    finally:
        (site.home / "away").rename(dotenv)


@with_postgres
@pytest.mark.slow
def test_postgres_password_is_required_and_private(here: Site) -> None:
    import psycopg2

    password = urlsplit(here.database).password or ""
    assert len(password) >= 32
    assert (here.home / ".env").stat().st_mode & 0o777 == 0o600
    for pid in servers.running().values():
        assert password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(here.database.replace(password, "wrong") + "_mlflow")


@with_postgres
@pytest.mark.slow
def test_sweep_storage_requires_database_of_trials(here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plan = make_sweep(tmp_path, "first")
    study = Study(plan, folder.storage(plan), folder.study_name(plan))
    study.ask()
    again = Study(plan, folder.storage(plan), folder.study_name(plan))
    assert [trial.params for trial in again.trials] == [trial.params for trial in study.trials]
    assert here.rows("optuna", "select study_name from studies") == [(f"first {folder.id}",)]
    monkeypatch.delenv(DATABASE)
    with pytest.raises(
        UserError, match=r"sweep first: its trials are stored in postgresql\+psycopg2://shepherd:\*\*\*@"
    ):
        SweepFolder("first").storage(plan)


@with_postgres
@pytest.mark.slow
def test_up_restarts_killed_postgres_with_data(here: Site) -> None:
    before = here.rows("prefect", "select id from flow order by id")
    os.kill(servers.running()["postgres"], signal.SIGKILL)
    wait_for(lambda: "postgres" not in servers.running(), "its end")
    output = here.servers("up")  # .env names it
    assert "postgres               started" in output and output.count("already running") == 3
    assert here.rows("prefect", "select id from flow order by id") == before
