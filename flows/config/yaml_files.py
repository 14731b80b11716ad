"""The config files that can be chosen, and Hydra's loader, which puts the chosen ones together.

Hydra's loader is used alone: none of its global state is touched, no plugin is loaded, no file is written, and no
package is imported because a config or a search path names it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from flows.config import mistakes
from flows.config.search_path import BUILT_IN, config_folders
from flows.settings import run_root
from rlcore.config.values import nearest
from rlcore.errors import UserError

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import DictConfig

Stamp = tuple[str, int, int]


def groups() -> dict[str, tuple[str, ...]]:
    """Return the names that one may write behind `group=`, by group: `ppo`, or `folder/name` of a file in a folder."""
    found: dict[str, set[str]] = {}
    for folder in config_folders():
        for file in (*folder.glob("*/**/*.yaml"), *folder.glob("*/**/*.yml")):
            group, *name = file.relative_to(folder).with_suffix("").parts
            if not any(part.startswith(".") for part in (group, *name)):
                found.setdefault(group, set()).add("/".join(name))
    return {group: tuple(sorted(names)) for group, names in found.items()}


def available(group: str) -> list[str]:
    """Names of the files of a group; raises UserError when there is no such group."""
    found = groups()
    if group not in found:
        raise UserError(f"{group}: no such group{nearest(group, found)}; groups: {', '.join(sorted(found))}")
    return list(found[group])


def presets() -> list[str]:
    """Names behind `exp=`; `default` is where one's own presets start, not one of them."""
    return [name for name in available("exp") if name != "default"]


@functools.cache  # every key of a help text asks
def default_names() -> dict[str, str]:
    """Names of a run and its folders, as interpolations: label, exp_name, run_name, log_root, root_dir, run_dir."""
    root = yaml.safe_load((BUILT_IN / "config.yaml").read_text())
    return {key: value for key, value in root.items() if key != "defaults"}


def load(choices: Sequence[str], groups: Mapping[str, Sequence[str]]) -> DictConfig:
    """The chosen files (in Hydra's spelling, `exp=` among them) put together by Hydra, without its own keys.

    Interpolations are not resolved. A mistake in the files is a `UserError`.
    """
    preset = next((choice for choice in choices if choice.startswith("exp=")), None)
    if preset is None:
        raise UserError("no preset chosen: name one, as exp=ppo; `shepherd train -h` lists them")
    register_resolvers()
    try:
        composed = copy.deepcopy(_put_together(tuple(choices), tuple(config_folders()), _stamps()))
    except Exception as error:  # Hydra's own, and whatever it meets in a malformed file (YAML, types, encodings)
        raise UserError(mistakes.of_files(error, " ".join(choices), groups)) from None
    if "exp" in composed:
        raise UserError(f"{preset}: the file must begin with the line `# @package _global_`, or its keys are not read")
    _label(composed, preset.partition("=")[2])
    return composed


def _label(composed: DictConfig, preset: str) -> None:
    """Name a run by the user's own preset: one that is not shipped, unless a file has a label already."""
    from omegaconf import OmegaConf

    chosen = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(chosen, dict)
    shipped = any((BUILT_IN / "exp" / f"{preset}{ending}").exists() for ending in (".yaml", ".yml"))
    if not shipped and chosen.get("label", "") in ("", default_names()["label"]):
        composed.label = preset.replace("/", "_")


@functools.lru_cache(maxsize=64)
def _put_together(choices: tuple[str, ...], folders: tuple[Path, ...], stamps: frozenset[Stamp]) -> DictConfig:
    """Hydra takes a tenth of a second for what a process with many runs asks for again and again."""
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    safe = [*choices, "hydra.searchpath=[]"]  # of a user's config.yaml: Hydra would import the packages it names
    composed = _loader(folders).load_configuration("config", safe, RunMode.RUN, from_shell=False)
    OmegaConf.set_struct(composed, False)
    composed.pop("hydra", None)
    return composed


def _stamps() -> frozenset[Stamp]:
    """Name, time and size of every file there is, which tell whether one was changed."""
    files = (file for folder in config_folders() for file in folder.rglob("*.y*ml"))
    return frozenset((str(file), (now := file.stat()).st_mtime_ns, now.st_size) for file in files)


def register_resolvers() -> None:
    """The functions of interpolations that OmegaConf does not bring: `${now:%Y-%m-%d}`, `${run_root:}`."""
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("now"):  # Hydra's own is the same
        # Cached: one run has one time, wherever its config mentions it.
        OmegaConf.register_new_resolver("now", lambda pattern: datetime.now().strftime(pattern), use_cache=True)
    if not OmegaConf.has_resolver("run_root"):
        OmegaConf.register_new_resolver("run_root", run_root)


def _loader(folders: Sequence[Path]) -> ConfigLoaderImpl:
    """Hydra's loader over our folders and nothing else; `hydra.initialize` would search its plugins as well."""
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
