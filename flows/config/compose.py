"""From a command line to a checked config: Hydra composes the group files, the typed config of rlcore checks it.

    group files (the user's folders, then conf/)  ->  built-in defaults beneath  ->  settings on top
    ->  interpolations resolved  ->  class strings read as names  ->  `build_config`

Hydra's loader is used alone: none of its global state is touched, no plugin is loaded, no file is written, and no
package is imported because a config or a search path names it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config.overrides import Setting, not_an_option, parse, refuse_choices
from flows.config.search_path import BUILT_IN, config_folders
from flows.config.secrets import refuse_secrets
from flows.config.sheeprl_names import Tree, named
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import REQUIRED, arguments, defaults, plain, spell
from rlcore.errors import UserError, nearest
from rlcore.store.run_config import build_config

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import DictConfig

_LOCK = threading.Lock()  # Hydra's registries and parser are not made for several threads


@dataclass(frozen=True)
class Files:
    """The config files that can be chosen now.

    Attributes:
        folders: searched in this order.
        options: group -> names of its files.
    """

    folders: tuple[Path, ...]
    options: Mapping[str, tuple[str, ...]]


def compose(overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """The checked config of a new run from what a user typed.

    Args:
        overrides: group choices and settings, as `["exp=ppo", "env.id=Acrobot-v1", "seed=3"]`.

    Returns:
        The config, and the same as a whole plain tree (what `config.yaml` holds).

    Raises:
        UserError: any mistake in an override or a config file, in one sentence.
    """
    with _LOCK:
        tree = _resolved(_composed(overrides))
    return _checked(tree)


def parameters(overrides: Sequence[str]) -> dict[str, Any]:
    """The config as a parameter file, `params.yaml`: every key, interpolations kept.

    Args:
        overrides: as for `compose`.

    Returns:
        A plain tree. The keys that name a run and its folders are left out: they are no parameters of an experiment.

    Raises:
        UserError: any mistake in an override or a config file, in one sentence.
    """
    from omegaconf import OmegaConf

    with _LOCK:
        composed = _composed(overrides)
        _, checked = _checked(_resolved(composed))
    tree = _interpolated(checked, OmegaConf.to_container(composed, resolve=False))
    return {key: value for key, value in tree.items() if key not in default_names()}


def compose_parameters(params_yaml: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """The checked config of a run from a parameter file.

    Args:
        params_yaml: as `parameters` makes it; keys that it does not name have their built-in defaults.
        overrides: settings of keys on top of it.

    Returns:
        The config, and the same as a whole plain tree.

    Raises:
        UserError: the file cannot be read, or one of its values or an override is wrong.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    typed = parse(overrides, _files().options, known_keys())
    refuse_choices(typed)
    try:
        stored = OmegaConf.load(params_yaml)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{params_yaml}: cannot be read ({_one_line(error)})") from None
    if not isinstance(stored, DictConfig) or not {"algo", "env"} <= set(stored):
        raise UserError(f"{params_yaml}: not the parameters of a run; `shepherd config exp=ppo --params` prints such")
    with _LOCK:
        _register_resolvers()
        tree = _resolved(_with_settings(_with_defaults(stored), typed.settings))
    return _checked(tree)


def compose_existing(run_config_yaml: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """The checked config of a run that exists, with single keys set anew.

    Args:
        run_config_yaml: its `config.yaml`.
        overrides: settings of keys; files cannot be chosen any more.

    Returns:
        The config, and the same as a whole plain tree.

    Raises:
        UserError: the file cannot be read, or an override is wrong.
    """
    import yaml
    from omegaconf import OmegaConf

    try:
        stored = yaml.safe_load(Path(run_config_yaml).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{run_config_yaml}: cannot be read ({_one_line(error)})") from None
    if not isinstance(stored, dict):
        raise UserError(f"{run_config_yaml}: this is not the config of a run")
    typed = parse(overrides, _files().options, known_keys())
    refuse_choices(typed)
    if not typed.settings:
        return _checked(stored)
    with _LOCK:
        tree = _resolved(_with_settings(OmegaConf.create(stored), typed.settings))
    return _checked(tree)


def dump(tree: Mapping[str, Any]) -> str:
    """A plain config tree as the YAML text of `config.yaml`; reading it back gives the same values."""
    import yaml

    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120)


def available(group: str) -> list[str]:
    """Names of the files of a group, the user's own among them.

    Args:
        group: as `exp` or `env`.

    Returns:
        Sorted names; what one may write behind `group=`.

    Raises:
        UserError: there is no such group.
    """
    options = _files().options
    if group not in options:
        raise UserError(f"{group}: no such group{nearest(group, options)}; groups: {', '.join(sorted(options))}")
    return list(options[group])


def presets(files: Files | None = None) -> list[str]:
    """Names behind `exp=`; `default` is where one's own presets start, not one of them."""
    return [name for name in (files or _files()).options["exp"] if name != "default"]


def known_keys() -> dict[str, bool]:
    """Every dotted key of the config, of all algorithms -> whether it takes text and nothing else (but null)."""
    found = [argument for argument in arguments(RunConfig) if argument.key != "algo"]
    for module in ALGORITHMS.values():
        found += arguments(module.Config, "algo.")
    return {argument.key: argument.type in (str, str | None) for argument in found}


def default_names() -> dict[str, str]:
    """How a run and its folders are called, as interpolations: exp_name, run_name, log_root, root_dir, run_dir."""
    import yaml

    root = yaml.safe_load((BUILT_IN / "config.yaml").read_text())
    return {key: value for key, value in root.items() if key != "defaults"}


def _composed(overrides: Sequence[str]) -> DictConfig:
    """What a user typed, put together with the files and the built-in defaults; interpolations are not resolved."""
    files = _files()
    typed = parse(overrides, files.options, known_keys())
    if not any(choice.startswith("exp=") for choice in typed.choices):
        raise UserError(f"no preset chosen: name one, as exp=ppo; presets: {', '.join(presets(files))}")
    return _with_settings(_with_defaults(_load(files, typed.choices)), typed.settings)


def _interpolated(checked: Any, written: Any) -> Any:
    """The checked tree, with the interpolations that were written for its values."""
    if isinstance(written, str) and "${" in written:
        return written
    if isinstance(checked, Mapping) and isinstance(written, Mapping):
        return {key: _interpolated(value, written.get(key)) for key, value in checked.items()}
    return checked


def _files() -> Files:
    folders = tuple(config_folders())
    options: dict[str, set[str]] = {}
    for folder in folders:
        for group in sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")):
            names = {file.stem for pattern in ("*.yaml", "*.yml") for file in group.glob(pattern)}
            if names:
                options.setdefault(group.name, set()).update(names)
    return Files(folders, {group: tuple(sorted(names)) for group, names in options.items()})


def _loader(folders: Sequence[Path]) -> ConfigLoaderImpl:
    """Hydra's loader over these folders and nothing else.

    `hydra.initialize` would search its plugins as well, and a plugin may add packages to the search path.
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


def _load(files: Files, choices: Sequence[str]) -> DictConfig:
    """The chosen files put together by Hydra; every mistake in them as a sentence."""
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    _register_resolvers()
    # Hydra would import the packages that a `hydra.searchpath` in a user's config.yaml names.
    overrides = [*choices, "hydra.searchpath=[]"]
    try:
        composed = _loader(files.folders).load_configuration("config", overrides, RunMode.RUN, from_shell=False)
    except HydraException as error:
        raise UserError(_hydra_sentence(error, choices, files)) from None
    except OmegaConfBaseException as error:
        raise UserError(f"{' '.join(choices)}: {_one_line(error)}") from None
    except Exception as error:  # whatever Hydra meets in a malformed file of the user (YAML, types, encodings)
        raise UserError(_file_sentence(error, choices)) from None
    OmegaConf.set_struct(composed, False)
    composed.pop("hydra", None)
    if "exp" in composed:
        file = next(choice for choice in choices if choice.startswith("exp="))
        raise UserError(f"{file}: the file must begin with the line `# @package _global_`, or its keys are not read")
    return composed


def _register_resolvers() -> None:
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("now"):
        # Cached: one run has one time, wherever its config mentions it.
        OmegaConf.register_new_resolver("now", lambda pattern: datetime.now().strftime(pattern), use_cache=True)


def _with_defaults(composed: DictConfig) -> DictConfig:
    """The built-in defaults beneath the composed values, so that every key can be interpolated."""
    from omegaconf import OmegaConf

    for group in ("algo", "env"):
        if not _is_mapping(composed, group):
            raise UserError(f"{group}={spell(composed.get(group))}: this is a group of keys, not a single value")
    merged = OmegaConf.create(_built_in(composed))
    merged.merge_with(composed)
    return merged


def _built_in(composed: DictConfig) -> Tree:
    """The defaults of every key, those of the chosen algorithm under `algo`."""
    from omegaconf import OmegaConf

    name = OmegaConf.select(composed, "algo.name", throw_on_missing=False)
    if name is not None and name not in ALGORITHMS:
        known = f"{nearest(str(name), ALGORITHMS)}; algorithms: {', '.join(ALGORITHMS)}"
        raise UserError(f"algo.name={spell(name)}: not an algorithm here{known}")
    return defaults(RunConfig) | default_names() | {"algo": {} if name is None else defaults(ALGORITHMS[name].Config)}


def _is_mapping(config: DictConfig, key: str) -> bool:
    from omegaconf import OmegaConf

    return not OmegaConf.is_missing(config, key) and OmegaConf.is_dict(config.get(key))


def _with_settings(config: DictConfig, settings: Sequence[Setting]) -> DictConfig:
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    names = default_names()
    for setting in settings:
        try:
            if setting.delete or (setting.key in names and setting.value in (None, "")):
                _take_back(config, setting.key)
            else:
                OmegaConf.update(config, setting.key, setting.value, merge=True, force_add=True)
        except GrammarParseError:
            raise UserError(
                f"{setting.key}={spell(setting.value)}: the interpolation cannot be read; write it as ${{key}}"
            ) from None
        except (OmegaConfBaseException, ValueError, TypeError, IndexError, AssertionError) as error:
            typed = f"~{setting.key}" if setting.delete else f"{setting.key}={spell(setting.value)}"
            raise UserError(f"{typed}: {_one_line(error)}") from None
    return config


def _take_back(config: DictConfig, key: str) -> None:
    """The built-in default of a key, whatever the files said; removes a key that has none."""
    from omegaconf import OmegaConf

    value: Any = _built_in(config)
    for part in key.split("."):
        value = value.get(part, REQUIRED) if isinstance(value, dict) else REQUIRED
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not OmegaConf.is_dict(node):
        return
    node.pop(last, None)
    if value is not REQUIRED:
        node[last] = value


def _resolved(config: DictConfig) -> Tree:
    """Plain values, every `${...}` replaced."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    _require(config, "algo.name", f"choose a preset with exp=; algorithms: {', '.join(ALGORITHMS)}")
    _require(config, "env.id", "any Gymnasium id, as env.id=CartPole-v1")
    try:
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(_interpolation_sentence(error, config)) from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _require(config: DictConfig, key: str, fix: str) -> None:
    from omegaconf import OmegaConf

    group, _, name = key.partition(".")
    if _is_mapping(config, group) and OmegaConf.is_missing(config[group], name):
        raise UserError(f"{key} is required: {fix}")


def _checked(tree: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    config = build_config(named(tree))
    values = plain(config)
    refuse_secrets(values)
    return config, values


def _hydra_sentence(error: Exception, choices: Sequence[str], files: Files) -> str:
    """A Hydra error as one sentence; a missing file with its nearest match."""
    from hydra.errors import MissingConfigException

    text = _one_line(error if str(error) else error.__cause__ or error)
    source = re.match(r"In '([^']+)'", text)
    # The defaults of the root are what the choices made of them.
    asked = f"in {source[1]}.yaml, " if source and source[1] != "config" else f"{' '.join(choices)}: "
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).strip("/").rpartition("/")
        if group in files.options:
            return asked + not_an_option(group, name.removesuffix(".yaml"), files.options[group])
        return f"{asked}{group or name}: no such group of config files{nearest(group or name, files.options)}"
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        group = override[1].partition("@")[0]
        known = "nothing of this group is chosen so far" if group in files.options else "no such group"
        return f"{asked}override {override[1]}: {known}{nearest(group, [o for o in files.options if o != group])}"
    return asked + (text[source.end() :].lstrip(": ") if source else text)


def _file_sentence(error: Exception, choices: Sequence[str]) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "not YAML"
        return f"{mark.name}:{mark.line + 1}: this is not YAML ({problem})"
    return f"{' '.join(choices)}: a config file cannot be read ({_one_line(error)})"


def _interpolation_sentence(error: Exception, config: DictConfig) -> str:
    from omegaconf import OmegaConf

    key = str(getattr(error, "full_key", None) or "")
    known = dict(_leaves(OmegaConf.to_container(config, resolve=False)))
    typed = f"{key}={spell(known[key])}" if key in known else key or "config"
    text = _one_line(error)
    if "Recursive interpolation" in text:
        return f"{typed}: this interpolation leads back to itself; give one of the keys on the way a value"
    missing = re.search(r"Interpolation key '([^']+)' not found", text)
    if missing:
        return f"{typed}: there is no key {missing[1]!r}{nearest(missing[1], [k for k in known if k != key])}"
    unset = re.search(r"Environment variable '([^']+)' not found", text)
    if unset:
        return f"{typed}: the environment variable {unset[1]} is not set; set it, or give {key} a value"
    needed = re.search(r"Missing mandatory value: (\S+)", text)
    if needed:
        return f"{typed}: {needed[1]} has no value yet; set {needed[1]}"
    resolver = re.search(r"Unsupported interpolation type (\S+)", text)
    if resolver:
        return f"{typed}: there is no function {resolver[1]} for interpolations; allowed: now, oc.env, oc.select"
    return f"{typed}: {text}"


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a plain tree, groups included."""
    for key, value in tree.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")


def _one_line(error: object) -> str:
    """The first paragraph of an error, without the addresses and object types that libraries append."""
    text = re.split(r"\n\s*(?:full_key|object_type|reference_type|See )", str(error))[0]
    return " ".join(text.split()) or type(error).__name__
