"""Modules of the user's own: named by the user in SHEPHERD_PLUGINS or behind a command, never by a file.

A plugin registers what it brings when it is imported: environments with Gymnasium, algorithms with
`rlcore.algorithms.register`; a class that `env.wrapper._target_` names lies in it. A run notes the plugins it was made
with; whoever goes on with it names them again.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from rlcore.errors import UserError
from rlcore.user_code import is_failure, spell_error, user_code

VARIABLE = "SHEPHERD_PLUGINS"
_importing: list[str] = []  # plugins whose import has begun and not ended


def list_named() -> list[str]:
    """The modules that the user has named, in this process and for its children."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def name(modules: Iterable[str]) -> None:
    """Name more of them."""
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*list_named(), *modules]))


def take_from(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The plugins among what a user typed, as `plugins=[a,b]`, and the other words."""
    typed = [word for word in words if word.lstrip("+").startswith("plugins=")]
    modules = [part.strip(" '\"[]") for word in typed for part in word.partition("=")[2].split(",")]
    return [module for module in modules if module], [word for word in words if word not in typed]


def as_typed(modules: Sequence[str] | None = None) -> list[str]:
    """Argument that names modules behind a command; None = those that the user has named."""
    modules = list_named() if modules is None else modules
    return [f"plugins=[{','.join(modules)}]"] if modules else []


def load() -> list[str]:
    """Import them, from the working directory too; their names. A UserError where one cannot be imported."""
    names = list_named()
    for module in names:
        import_plugin(module)
    return names


def import_plugin(module: str, key: str = "plugins") -> ModuleType:
    """A plugin, or a module in one, from the working directory too; a UserError where `key` names what cannot be."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    with user_code():
        try:
            _importing.append(module)
            found = importlib.import_module(module)
        except UserError:
            raise
        except BaseException as error:  # of its own code: any
            if not is_failure(error):
                raise
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
            where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if len(frames) > 1 else ""
            reason = f"{spell_error(error)}{where}"
            missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
            fix = "; type the command in the folder that has it, or name that folder in PYTHONPATH" if missing else ""
            raise UserError(f"{key}={module}: this module cannot be imported ({reason}){fix}") from None
        finally:
            _importing.pop()
    if found.__file__ is None:
        raise UserError(f"{key}={module}: a folder without __init__.py; name a module in it, as {module}.mine")
    return found


def importing() -> str | None:
    """Return the plugin that is being imported now, if any: its top level runs, and it is not the main program."""
    return _importing[-1] if _importing else None


def member(key: str, target: str) -> object:
    """Meaning of a dotted name in a config, in a plugin; nothing else is imported, and no other plugin."""
    refuse_foreign(key, target)
    module, _, name = target.rpartition(".")
    found = getattr(import_plugin(module, key), name, None)
    if found is None:
        raise UserError(f"{key}={target}: {module} has no {name}")
    return found


def refuse_foreign(key: str, target: str, hint: str = "") -> None:
    """Raise a UserError if a dotted name in a config lies in no plugin; it says what to type.

    Args:
        key: the key that has the name.
        target: the name, `package.module.Class`.
        hint: what may have been meant, to be appended.
    """
    if any(target.startswith(f"{plugin}.") for plugin in list_named()):
        return
    module, _, name = target.rpartition(".")
    package = module.partition(".")[0]
    if package == "sheeprl":  # users of SheepRL put their own environments into its package
        file, own = f"{module.replace('.', '/')}.py", module.rpartition(".")[2]
        if _is_there(own) and not Path(f"{own}.py").exists():
            own = f"my_{own}"
        fix = (
            f"copy your file {file} as {own}.py into the folder in which you type the command, "
            f"set {key}={own}.{name}, and add plugins=[{own}] behind the command"
        )
    elif _is_there(package):
        plugin = package if _is_package(package) else module
        fix = f"add plugins=[{plugin}] behind the command, or {VARIABLE}={plugin} before it"
    else:
        fix = (
            f"there is no module {package} here: type the command in the folder that has it, or name that folder in "
            f"PYTHONPATH, and add plugins=[{package}] behind the command"
        )
    raise UserError(f"{key}={target}: a class is imported only from a module that you name; {fix}{hint}")


def _is_package(name: str) -> bool:
    """Return whether a module has a file, as a folder without __init__.py has none."""
    here = Path.cwd() / name
    if here.is_dir():
        return (here / "__init__.py").exists()
    spec = importlib.util.find_spec(name) if not here.with_suffix(".py").exists() else None
    return spec is None or spec.origin is not None


def _is_there(package: str) -> bool:
    """Tell whether a package could be imported, from the working directory too; found, not imported."""
    here = Path.cwd() / package
    try:
        return here.is_dir() or here.with_suffix(".py").is_file() or importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a spec, as `__main__`
        return False


def bringing(module: str) -> list[str]:
    """The plugins that a module lies in; all of them where it lies in none, and none where it is one of ours."""
    if module.partition(".")[0] == __name__.partition(".")[0]:
        return []
    return [plugin for plugin in list_named() if f"{module}.".startswith(f"{plugin}.")] or list_named()


def require(modules: Iterable[str] | str) -> None:
    """Refuse what was made with plugins that nobody has named now: no file makes this program import anything."""
    given = [modules] if isinstance(modules, str) else modules
    if missing := [str(module) for module in given if module not in list_named()]:
        names = ",".join(missing)
        raise UserError(
            f"plugins=[{names}]: this was made with it, and nothing is imported because a file names it; "
            f"write plugins=[{names}] behind the command or {VARIABLE}={names} before it"
        )


def hashes() -> dict[str, str]:
    """SHA-256 of the Python sources of each: of its package, or of its one file."""
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
    """The folder of a package that has been imported, or the file of a module."""
    found = sys.modules[module]
    return Path(found.__path__[0] if hasattr(found, "__path__") else found.__file__ or "").resolve()
