"""PostgreSQL databases of Prefect, MLflow and Optuna, on a private server or on an existing one.

`make up DB=postgres` starts the private server, with the command

    python -m flows.workers.postgres PORT

which creates the data folder if there is none, and then replaces its process with PostgreSQL. PostgreSQL refuses to run
as root. If the command runs as root, it switches to the user `postgres` of Debian's package. Because this user cannot
access root's folders, the command first opens the data folder and passes it to PostgreSQL as a file descriptor.
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
from flows.workers.guard import USER
from flows.workers.servers import Server
from rlcore.errors import RunError, UserError
from rlcore.system.lifeline import alive
from rlcore.system.secrets import redact

SYSTEM_USER = "postgres"
DEBIAN = Path("/usr/lib/postgresql")  # contains VERSION/bin, which is not in PATH
INSTALL = "apt-get install -y postgresql"
USERS = ("prefect", "mlflow", "optuna")  # one database each, because some of their tables have the same names


def private_url(port: int, password: str) -> str:
    """Return the URL of the private PostgreSQL server that `make up DB=postgres` starts."""
    return f"postgresql://{USER}:{password}@{LOOPBACK}:{port}/shepherd"


def private_server(port: int, password: str) -> Server:
    """Return the definition of the private PostgreSQL server. Raises UserError if PostgreSQL is not installed."""
    _programs()
    command = (sys.executable, "-P", "-m", "flows.workers.postgres", str(port))
    return Server("postgres", command, {"PGPASSWORD": password})


def check_driver() -> None:
    """Raise UserError if the driver that MLflow and Optuna need for PostgreSQL is not installed."""
    try:
        import psycopg2  # noqa: F401 - of an extra
    except ImportError:
        raise UserError(
            "PostgreSQL needs psycopg2, which is not installed; run: pip install -e '.[postgres]'"
        ) from None


def make_databases(private: bool) -> None:
    """Create the databases of Prefect, MLflow and Optuna on the PostgreSQL server, if they do not exist.

    Args:
        private: True if the server is the private one of `make up`, which may still be starting; wait until it answers.

    Raises:
        UserError: The server of SHEPHERD_DATABASE_URL cannot be used; the message contains the reason.
        RunError: The private server did not start.
    """
    began = time.monotonic()
    while reason := _make_missing():
        if not private:
            raise UserError(f"{DATABASE}={redact(os.environ[DATABASE])}: {reason}")
        if "postgres" not in servers.running() or time.monotonic() - began > servers.START_TIMEOUT:
            raise RunError(f"PostgreSQL did not start ({reason}); see {servers.folder()}/postgres.log")
        time.sleep(0.2)


def _make_missing() -> str | None:
    """Create the databases that do not exist. Return None, or the reason if this is impossible."""
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
                return f'database "{name}" does not exist and cannot be created ({_first_line(refused)})'
    return None


def _create(url: str, name: str) -> None:
    import psycopg2  # of an extra
    from psycopg2 import errors, sql  # of an extra

    connection = psycopg2.connect(urlsplit(url)._replace(path="/postgres").geturl(), connect_timeout=5)
    connection.autocommit = True  # CREATE DATABASE is not allowed in a transaction
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except errors.DuplicateDatabase:  # `make up` of another machine has just created it
        return
    finally:
        connection.close()


def _first_line(error: Exception) -> str:
    return redact((str(error).strip().splitlines() or [type(error).__name__])[0])


def _programs() -> Path:
    """Return the folder that contains PostgreSQL's programs, such as initdb.

    This is a folder in PATH, or else the folder of the newest Debian package. Raises UserError if PostgreSQL is not
    installed.
    """
    on_path = shutil.which("initdb")
    packaged = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parent.parent.name))
    if not on_path and not packaged:
        raise UserError(
            f"DB=postgres: PostgreSQL is not installed on this machine; run `{INSTALL}`, "
            f"or set {DATABASE} to the address of another server"
        )
    if os.geteuid() == 0 and SYSTEM_USER not in {user.pw_name for user in pwd.getpwall()}:
        raise UserError(
            f"DB=postgres: PostgreSQL does not run as root, and there is no user {SYSTEM_USER}; run `{INSTALL}`"
        )
    return Path(on_path).parent if on_path else packaged[-1].parent


def main(port: int) -> None:
    """Replace this process with the private PostgreSQL server, whose data are in `<state folder>/postgres/data`."""
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
    """Create PostgreSQL's data folder `<place>/data`.

    It is created under another name and then renamed, so that a kill does not leave an incomplete folder.

    Args:
        programs: folder of PostgreSQL's programs.
        place: path of the parent folder, via the open descriptor.
        descriptor: the descriptor, which the child process inherits.
    """
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
    """If a killed server has left its pid in the file `postmaster.pid`, replace it by the pid of this process.

    Otherwise, PostgreSQL would refuse to start if the killed server is still a zombie process. The other lines of the
    file are kept, because PostgreSQL uses them to find leftover processes of the killed server.
    """
    if note.exists():
        pid, *rest = note.read_text().splitlines(keepends=True)
        if not alive(int(pid)):
            note.write_text("".join((f"{os.getpid()}\n", *rest)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
