"""Plugins: Python modules of the user with environments, algorithms or environment classes.

The user names plugins in SHEPHERD_PLUGINS or by `plugins=[…]` in a command. A module is never imported only because a
file names it. On import, a plugin registers environments with Gymnasium and algorithms with
`rlcore.algorithms.register`; the class in `env.wrapper._target_` must also be in a plugin. A run records its plugins,
and the user must name them again to resume or use the run.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from rlcore.errors import UserError
from rlcore.user_code import is_failure, spell_error, user_code

VARIABLE = "SHEPHERD_PLUGINS"
IMPORT_LIMIT = 120.0  # seconds for the import of one plugin: of processor time, or of waiting
_importing: list[str] = []  # plugins that are being imported now


def list_named() -> list[str]:
    """Return the plugins that the user named for this process, from the environment variable SHEPHERD_PLUGINS."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def name(modules: Iterable[str]) -> None:
    """Add plugins to the environment variable SHEPHERD_PLUGINS, which child processes inherit."""
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*list_named(), *modules]))


def take_from(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Extract the plugins from the words of a command: return the names in `plugins=[a,b]`, and all other words."""
    typed = [word for word in words if word.lstrip("+").startswith("plugins=")]
    modules = [part.strip(" '\"[]") for word in typed for part in word.partition("=")[2].split(",")]
    return [module for module in modules if module], [word for word in words if word not in typed]


def as_typed(modules: Sequence[str] | None = None) -> list[str]:
    """Return a list with the command-line argument `plugins=[a,b]`, or [] if there are no plugins.

    `modules` are the plugins; None: those that the user named.
    """
    modules = list_named() if modules is None else modules
    return [f"plugins=[{','.join(modules)}]"] if modules else []


def load() -> list[str]:
    """Import all plugins that the user named, and return their names. Raise UserError if one cannot be imported."""
    names = list_named()
    for module in names:
        import_plugin(module)
    return names


def import_plugin(module: str, key: str = "plugins") -> ModuleType:
    """Import a plugin, or a module of a plugin. The working directory is added at the end of the search path.

    Args:
        module: dotted name of the module.
        key: configuration key that contains the name, for the error message.

    Returns:
        The module.

    Raises:
        UserError: the module cannot be imported, or it is a folder without `__init__.py`.
    """
    with suppress(FileNotFoundError):  # an environment may have removed the working directory
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    with user_code():
        try:
            _importing.append(module)
            with _time_limit():
                found = importlib.import_module(module)
        except UserError:
            raise
        except BaseException as error:  # user code can raise any exception
            if not is_failure(error) and not isinstance(error, _ImportTimeout):
                raise
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
            frames = [f for f in frames if f.filename != __file__]
            where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
            late = isinstance(error, _ImportTimeout)
            reason = f"not finished after {IMPORT_LIMIT:g} s" if late else spell_error(error)
            reason = f"{reason}{where}"
            missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
            fix = (
                "; run the command in the folder that contains it, or add that folder to PYTHONPATH" if missing else ""
            )
            raise UserError(f"{key}={module}: this module cannot be imported ({reason}){fix}") from None
        finally:
            _importing.pop()
    if found.__file__ is None:
        raise UserError(f"{key}={module}: this folder has no __init__.py; name a module in it, such as {module}.mine")
    return found


class _ImportTimeout(BaseException):
    """Exception that ends the import of a plugin if it takes too long.

    It is not a subclass of `Exception`, so that `except Exception` in the plugin's code does not catch it.
    """


@contextmanager
def _time_limit() -> Iterator[None]:
    """Context manager that raises `_ImportTimeout` if its block hangs.

    It hangs if it has used IMPORT_LIMIT seconds of processor time, or almost none in IMPORT_LIMIT seconds. On a busy
    machine, the import of torch alone can take minutes; this is not an error.

    There is no limit outside the main thread. Native code is interrupted only when it returns to Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    start = last = time.process_time()

    def stop(number: int, frame: object) -> None:
        nonlocal last
        now = time.process_time()
        if now - start >= IMPORT_LIMIT or now - last < IMPORT_LIMIT / 20:
            raise _ImportTimeout
        last = now
        signal.setitimer(signal.ITIMER_REAL, IMPORT_LIMIT)

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, IMPORT_LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)  # None: not set by Python


def importing() -> str | None:
    """Return the name of the plugin that is being imported now, or None."""
    return _importing[-1] if _importing else None


def member(key: str, target: str) -> object:
    """Import a class or function that a config names, such as `env.wrapper._target_`.

    Its module must be part of a plugin that the user named. No other plugin is imported.

    Args:
        key: configuration key that contains the name, for error messages.
        target: dotted name, `package.module.Class` or `package.module:Class`.

    Returns:
        The class or function.

    Raises:
        UserError: the module is not part of a plugin, cannot be imported, or does not have the class or function.
    """
    refuse_foreign(key, target)
    module, _, name = target.replace(":", ".").rpartition(".")
    found = getattr(import_plugin(module, key), name, None)
    if found is None:
        raise UserError(f"{key}={target}: {module} has no {name}; correct the name, or define {name} in {module}")
    return found


def refuse_foreign(key: str, target: str, hint: str = "") -> None:
    """Raise UserError if a config names a class or function that is not part of a plugin that the user named.

    The message contains instructions.

    Args:
        key: configuration key that contains the name, for the message.
        target: dotted name, `package.module.Class` or `package.module:Class`.
        hint: a suggestion that is appended to the message.
    """
    dotted = target.replace(":", ".")
    if "." not in dotted:
        raise UserError(f"{key}={target}: must be a name with its module, as package.module:Class")
    if any(dotted.startswith(f"{plugin}.") for plugin in list_named()):
        return
    module, _, name = dotted.rpartition(".")
    package = module.partition(".")[0]
    if package == "sheeprl":  # users of SheepRL put their own environments into its package
        file, own = f"{module.replace('.', '/')}.py", module.rpartition(".")[2]
        if _is_there(own) and not Path(f"{own}.py").exists():
            own = f"my_{own}"
        fix = (
            f"copy your file {file} as {own}.py into the folder in which you run the command, "
            f"set {key}={own}.{name}, and add plugins=[{own}] to the command"
        )
    elif _is_there(package):
        plugin = package if _is_package(package) else module
        fix = f"add plugins=[{plugin}] to the command, or set {VARIABLE}={plugin}"
    else:
        fix = (
            f"module {package} was not found: run the command in the folder that contains it, or add that folder to "
            f"PYTHONPATH, and add plugins=[{package}] to the command"
        )
    raise UserError(f"{key}={target}: classes are imported only from modules that you name as plugins; {fix}{hint}")


def _is_package(name: str) -> bool:
    """Return False if a name is that of a folder without __init__.py, otherwise True."""
    here = Path.cwd() / name
    if here.is_dir():
        return (here / "__init__.py").exists()
    spec = importlib.util.find_spec(name) if not here.with_suffix(".py").exists() else None
    return spec is None or spec.origin is not None


def _is_there(package: str) -> bool:
    """Return True if a package can be found, also in the working directory; it is not imported."""
    here = Path.cwd() / package
    try:
        return here.is_dir() or here.with_suffix(".py").is_file() or importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a spec, such as `__main__`
        return False


def bringing(module: str) -> list[str]:
    """Return the plugins that must be imported so that a module, and what it registers, is available.

    Only plugins that the user has named are considered. If the module is a part of some of them, the result is these
    plugins. If it is a part of none, any of them could import it, and the result is all of them. For a module of
    rlcore, the result is [].
    """
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return []
    return [plugin for plugin in list_named() if f"{module}.".startswith(f"{plugin}.")] or list_named()


def missing(modules: Iterable[str] | str) -> list[str]:
    """Return those of the plugins that the user has not named."""
    given = [modules] if isinstance(modules, str) else modules
    return [str(module) for module in given if module not in list_named()]


def require(modules: Iterable[str] | str) -> None:
    """Raise UserError if the user has not named all plugins that a run or model needs.

    These plugins are not imported automatically. Otherwise a file could make this program execute code.
    """
    if absent := missing(modules):
        names = ",".join(absent)
        raise UserError(
            f"plugins=[{names}]: this run or model needs the plugin, but the command does not name it; add "
            f"plugins=[{names}] to the command, or set {VARIABLE}={names} (a plugin is imported only if you name it)"
        )


def hashes() -> dict[str, str]:
    """Import all plugins that the user named; return name -> SHA-256 of the Python files of the plugin."""
    found: dict[str, str] = {}
    for module in load():
        path = source(module)
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        digest = hashlib.sha256()
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(path.parent).as_posix()}\0{len(content)}\0".encode() + content)
        found[module] = digest.hexdigest()
    return found


def source(module: str) -> Path:
    """Return the folder of an imported package, or the file of an imported module."""
    found = sys.modules[module]
    return Path(found.__path__[0] if hasattr(found, "__path__") else found.__file__ or "").resolve()
