"""PostgreSQL behind Prefect, MLflow and Optuna: a private one of `make up DB=postgres`, or one that is there.

    python -m flows.workers.postgres PORT

is the private one's process: it makes the data folder if there is none, then becomes the server. PostgreSQL refuses to
run as root, so root hands it to the user that Debian's package has made. That user may not enter root's folders: the
data folder is therefore given to it as an open descriptor.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flows.settings import DATABASE, LOOPBACK, database_url, state_folder
from flows.workers import servers
from flows.workers.dotenv import USER
from flows.workers.servers import Server
from rlcore.errors import RunError, UserError
from rlcore.system.lifeline import alive
from rlcore.system.secrets import redact

SYSTEM_USER = "postgres"
DEBIAN = Path("/usr/lib/postgresql")  # VERSION/bin, which is on nobody's PATH
INSTALL = "apt-get install -y postgresql"
USERS = ("prefect", "mlflow", "optuna")  # each has tables called as another's, so each has a database


def private_url(port: int, password: str) -> str:
    """The address of the private server."""
    return f"postgresql://{USER}:{password}@{LOOPBACK}:{port}/shepherd"


def private_server(port: int, password: str) -> Server:
    """The private server; `UserError` where PostgreSQL is not installed."""
    _programs()
    command = (sys.executable, "-P", "-m", "flows.workers.postgres", str(port))
    return Server("postgres", command, {"PGPASSWORD": password})


def check_driver() -> None:
    """Refuse to go on without the driver by which MLflow and Optuna reach PostgreSQL."""
    try:
        import psycopg2  # noqa: F401 - of an extra
    except ImportError:
        raise UserError(
            "PostgreSQL needs psycopg2, which is not installed; pip install -e '.[postgres]' brings it"
        ) from None


def make_databases(private: bool) -> None:
    """Make the three databases where they are not there; waits until the private server answers.

    A `UserError` says why the server that SHEPHERD_DATABASE_URL names cannot be used, a `RunError` that the private one
    did not start.
    """
    began = time.monotonic()
    while reason := _make_missing():
        if not private:
            raise UserError(f"{DATABASE}={redact(os.environ[DATABASE])}: {reason}")
        if "postgres" not in servers.running() or time.monotonic() - began > servers.START_TIMEOUT:
            raise RunError(f"PostgreSQL did not start ({reason}); what it said is in {servers.folder()}/postgres.log")
        time.sleep(0.2)


def _make_missing() -> str | None:
    """Make what is missing; the reason why that cannot be done."""
    import psycopg2  # of an extra

    for user in USERS:
        url = database_url(user, "")
        assert url is not None
        name = unquote(urlsplit(url).path[1:])
        try:
            psycopg2.connect(url, connect_timeout=5).close()
        except psycopg2.OperationalError as error:
            if f'database "{name}" does not exist' not in str(error):
                return _first_line(error)
            try:
                _create(url, name)
            except psycopg2.Error as refused:
                return f'database "{name}" is not there and cannot be made ({_first_line(refused)})'
    return None


def _create(url: str, name: str) -> None:
    import psycopg2  # of an extra
    from psycopg2 import errors, sql  # of an extra

    connection = psycopg2.connect(urlsplit(url)._replace(path="/postgres").geturl(), connect_timeout=5)
    connection.autocommit = True  # CREATE DATABASE is in no transaction
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except errors.DuplicateDatabase:  # another machine's `make up` was quicker
        return
    finally:
        connection.close()


def _first_line(error: Exception) -> str:
    return redact((str(error).strip().splitlines() or [type(error).__name__])[0])


def _programs() -> Path:
    """The folder of PostgreSQL's programs, the newest of the system's packages."""
    on_path = shutil.which("initdb")
    packaged = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parent.parent.name))
    if not on_path and not packaged:
        raise UserError(
            f"DB=postgres: PostgreSQL is not installed here; `{INSTALL}`, or set {DATABASE} to another server"
        )
    if os.geteuid() == 0 and SYSTEM_USER not in {user.pw_name for user in pwd.getpwall()}:
        raise UserError(
            f"DB=postgres: PostgreSQL does not run as root, and there is no user {SYSTEM_USER}; `{INSTALL}`"
        )
    return Path(on_path).parent if on_path else packaged[-1].parent


def main(port: int) -> None:
    """Become the private server, with its data in `<state folder>/postgres/data`."""
    programs, folder = _programs(), state_folder() / "postgres"
    folder.mkdir(mode=0o700, exist_ok=True)
    parent = os.open(folder, os.O_RDONLY)
    os.set_inheritable(parent, True)
    if os.geteuid() == 0:
        user = pwd.getpwnam(SYSTEM_USER)
        os.chown(parent, user.pw_uid, user.pw_gid)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.chdir("/")
    place = f"/proc/self/fd/{parent}"
    if not os.path.exists(f"{place}/data"):
        _make_data(programs, place, parent)
    _forget_killed(Path(place, "data/postmaster.pid"))
    options = {"listen_addresses": LOOPBACK, "unix_socket_directories": ""}
    settings = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
    os.environ.pop("PGPASSWORD")
    os.execv(programs / "postgres", ["postgres", "-D", f"{place}/data", "-p", str(port), *settings])


def _make_data(programs: Path, place: str, descriptor: int) -> None:
    """Make the data folder beside its name and rename it: a kill half-way leaves none that cannot be used."""
    shutil.rmtree(f"{place}/building", ignore_errors=True)
    login = Path(place, "login")
    login.touch(mode=0o600)
    login.write_text(os.environ["PGPASSWORD"])
    words = ["-U", USER, "--auth=scram-sha-256", f"--pwfile={login}", "--encoding=UTF8", "--locale=C.UTF-8"]
    command = [programs / "initdb", "-D", f"{place}/building", *words]
    try:
        subprocess.run(command, check=True, pass_fds=[descriptor])
    finally:
        login.unlink()
    os.rename(f"{place}/building", f"{place}/data")


def _forget_killed(note: Path) -> None:
    """Put this process in the place of one that was killed and that nobody waits for: PostgreSQL takes it for alive.

    The rest of the note, by which it finds processes of its own that are left, stays.
    """
    if note.exists():
        pid, *rest = note.read_text().splitlines(keepends=True)
        if not alive(int(pid)):
            note.write_text("".join((f"{os.getpid()}\n", *rest)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
