"""Config files: the folders that contain them, their lists by group, and their composition with Hydra.

The folders are those of the user, in order, and then the project's `conf/`.

Only Hydra's config loader is used. It leaves Hydra's global state unchanged, loads no plugin and writes no file. It
does not import the packages that a config or a search path names.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from flows.config import mistakes
from flows.settings import run_root
from rlcore.config.values import nearest
from rlcore.errors import UserError

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import DictConfig

Stamp = tuple[str, int, int]

BUILT_IN = Path(__file__).resolve().parents[2] / "conf"
VARIABLES = ("SHEPHERD_SEARCH_PATH", "SHEEPRL_SEARCH_PATH")
# Names of the built-in folder in SheepRL's search paths; packages are never imported for their configs.
BUILT_IN_PACKAGES = ("pkg://sheeprl.configs", "pkg://conf")


def config_folders() -> list[Path]:
    """Return the folders that are searched for config files, in order of precedence. The built-in folder is the last.

    The environment variables that list the folders are read from the environment, or from `.env` in the working
    directory.
    """
    from dotenv import dotenv_values

    known = dotenv_values(Path.cwd() / ".env") | os.environ
    entries = ((name, entry.strip()) for name in VARIABLES for entry in (known.get(name) or "").split(";"))
    folders = [_folder(name, entry) for name, entry in entries if entry and entry not in BUILT_IN_PACKAGES]
    return [*dict.fromkeys(folders), BUILT_IN]


def _folder(variable: str, entry: str) -> Path:
    scheme, separator, rest = entry.partition("://")
    if separator and scheme != "file":
        raise UserError(
            f"{variable}: {entry!r} must be a folder, because packages are not imported for their configs; "
            "write it as file:///home/me/configs"
        )
    folder = Path(rest if separator else entry).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{variable}: {entry!r} does not exist ({folder}); create it or remove it from the variable")
    return folder


def groups() -> dict[str, tuple[str, ...]]:
    """Return group of config files -> names of its files, which are valid after `group=`.

    A name has no extension: "ppo", or "folder/name" for a file in a subfolder.
    """
    by_group: dict[str, set[str]] = {}
    for folder in config_folders():
        for file in folder.glob("*/**/*.yaml"):
            group, *name = file.relative_to(folder).with_suffix("").parts
            if not any(part.startswith(".") for part in (group, *name)):
                by_group.setdefault(group, set()).add("/".join(name))
    return {group: tuple(sorted(names)) for group, names in by_group.items()}


def misnamed(group: str, name: str) -> Path | None:
    """Return the path of the file `name.yml` of a group, or None if it does not exist; Hydra reads only .yaml files."""
    folders = (folder / group for folder in config_folders())
    files = {file.relative_to(folder).as_posix(): file for folder in folders for file in folder.glob("**/*.yml")}
    return files.get(f"{name.removesuffix('.yml')}.yml")


def available(group: str) -> list[str]:
    """Return the names of the config files in a group; raise UserError if the group does not exist."""
    known = groups()
    if group not in known:
        raise UserError(f"{group}: no such group{nearest(group, known)}; groups: {', '.join(sorted(known))}")
    return list(known[group])


def presets() -> list[str]:
    """Return the names of all presets, which are valid after `exp=`.

    The file `exp/default.yaml` is omitted, because it is only a base for presets that users write.
    """
    return [name for name in available("exp") if name != "default"]


@functools.cache  # called for every key of a help text
def default_names() -> dict[str, str]:
    """Return the defaults of the keys that name a run and its folders (label, exp_name, run_name, …).

    The values contain interpolations, for example of the current time.
    """
    root = yaml.safe_load((BUILT_IN / "config.yaml").read_text())
    return {key: value for key, value in root.items() if key != "defaults"}


def load(choices: Sequence[str], groups: Mapping[str, Sequence[str]]) -> DictConfig:
    """Compose config files with Hydra. Interpolations are not resolved, and the keys of the group `hydra` are removed.

    Args:
        choices: overrides that choose the files, such as "exp=ppo" and "env=atari"; `exp` is required.
        groups: group of config files -> names of its files.

    Returns:
        The composed config.

    Raises:
        UserError: no preset is chosen, or a file has an error.
    """
    preset = next((choice for choice in choices if choice.startswith("exp=")), None)
    if preset is None:
        raise UserError("no preset chosen; add one, as exp=ppo (`shepherd train -h` lists them)")
    register_resolvers()
    try:
        composed = copy.deepcopy(_put_together(tuple(choices), tuple(config_folders()), _stamps()))
    except Exception as error:  # Hydra's errors, and any error that a malformed file causes (YAML, types, encodings)
        raise UserError(mistakes.of_files(error, " ".join(choices), groups)) from None
    if "exp" in composed:
        raise UserError(f"{preset}: the first line of the file must be `# @package _global_`; add it, or move it there")
    _label(composed, preset.partition("=")[2])
    return composed


def _label(composed: DictConfig, preset: str) -> None:
    """Set the key `label` to the name of the preset if the user has written the preset.

    If a config file sets `label`, its value is kept.
    """
    from omegaconf import OmegaConf

    chosen = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(chosen, dict)
    shipped = (BUILT_IN / "exp" / f"{preset}.yaml").exists()
    if not shipped and chosen.get("label", "") in ("", default_names()["label"]):
        composed.label = preset.replace("/", "_")


@functools.lru_cache(maxsize=64)
def _put_together(choices: tuple[str, ...], folders: tuple[Path, ...], stamps: frozenset[Stamp]) -> DictConfig:
    """Compose files with Hydra.

    The result is cached, because composition takes 0.1 s and a process may compose the configs of many runs.
    """
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    safe = [*choices, "hydra.searchpath=[]"]  # otherwise Hydra imports the packages named in a user's config.yaml
    composed = _loader(folders).load_configuration("config", safe, RunMode.RUN, from_shell=False)
    OmegaConf.set_struct(composed, False)
    composed.pop("hydra", None)
    return composed


def _stamps() -> frozenset[Stamp]:
    """Return the path, modification time and size of each config file, to detect changed files."""
    files = (file for folder in config_folders() for file in folder.rglob("*.y*ml"))
    return frozenset((str(file), (now := file.stat()).st_mtime_ns, now.st_size) for file in files)


def register_resolvers() -> None:
    """Register two functions for interpolations in OmegaConf.

    `${now:%Y-%m-%d}` is the current time in a format of `strftime`; `${run_root:}` is the folder of all runs.
    """
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("now"):  # Hydra registers an equal one
        # Cached, so that all interpolations in the config of a run give the same time.
        OmegaConf.register_new_resolver("now", lambda pattern: datetime.now().strftime(pattern), use_cache=True)
    if not OmegaConf.has_resolver("run_root"):
        OmegaConf.register_new_resolver("run_root", run_root)


def _loader(folders: Sequence[Path]) -> ConfigLoaderImpl:
    """Return Hydra's config loader with `folders` as its search path.

    `hydra.initialize` is not used, because it would also search for plugins and import them.
    """
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
    from hydra._internal.core_plugins import basic_launcher, basic_sweeper  # noqa: F401  register what its config names
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
    from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
    from hydra._internal.sources_registry import SourcesRegistry

    version.setbase("1.3")
    for source in (FileConfigSource, ImportlibResourcesConfigSource, StructuredConfigSource):
        SourcesRegistry.instance().register(source)
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    for folder in folders:
        path.append("main", f"file://{folder}")
    path.append("schema", "structured://")
    return ConfigLoaderImpl(path)
