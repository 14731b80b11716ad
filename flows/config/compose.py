"""From a command line to a checked config: Hydra composes the files, the typed config of rlcore checks the result.

files of the groups (the user's folders, then conf/)  ->  built-in defaults beneath  ->  settings on top
->  interpolations resolved  ->  class strings read as names  ->  `build_config`
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import mistakes, yaml_files
from flows.config.overrides import Typed, parse
from flows.config.secrets import refuse_secrets
from flows.config.sheeprl_keys import refuse_other_algorithms
from flows.config.sheeprl_names import name_classes
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import defaults, nearest, plain, spell
from rlcore.errors import UserError
from rlcore.store.run_config import build_config

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LOCK = threading.Lock()  # Hydra's registries and parser are not made for several threads


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
        return _checked(_composed(overrides))


def params_yaml(overrides: Sequence[str]) -> dict[str, Any]:
    """The content of a parameter file, `params.yaml`: every key, interpolations kept.

    The keys that name a run and its folders are left out: they are no parameters of an experiment.
    """
    from omegaconf import OmegaConf

    with _LOCK:
        composed = _composed(overrides)
        _, values = _checked(composed)
        tree = _interpolated(values, OmegaConf.to_container(composed, resolve=False))
    return {key: value for key, value in tree.items() if key not in yaml_files.default_names()}


def compose_params(file: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """As `compose`, from a parameter file as `params_yaml` makes it and settings of single keys on top.

    Keys that the file does not name have their built-in defaults.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    with _LOCK:
        try:
            stored = OmegaConf.load(file)
        except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
            raise UserError(f"{file}: cannot be read ({mistakes.one_line(error)})") from None
        if not isinstance(stored, DictConfig) or not {"algo", "env"} <= set(stored):
            raise UserError(f"{file}: not the parameters of a run; `shepherd config exp=ppo --params` prints such")
        return _checked(_changed(stored, overrides))


def compose_existing(config_yaml: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """As `compose`, from the `config.yaml` of a run that exists and settings of single keys on top."""
    import yaml

    try:
        stored = yaml.safe_load(Path(config_yaml).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{config_yaml}: cannot be read ({mistakes.one_line(error)})") from None
    if not isinstance(stored, dict):
        raise UserError(f"{config_yaml}: this is not the config of a run")
    if not overrides:
        return _checked(stored)
    from omegaconf import OmegaConf

    with _LOCK:
        return _checked(_changed(OmegaConf.create(stored), overrides))


def dump(tree: Mapping[str, Any]) -> str:
    """A plain config tree as the YAML text of `config.yaml`; reading it back gives the same values."""
    import yaml

    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120)


def _composed(overrides: Sequence[str]) -> DictConfig:
    """Files, built-in defaults and settings together; interpolations are not resolved."""
    groups = yaml_files.groups()
    typed = parse(overrides, groups)
    typed.refuse_sweeps()
    return _merged(yaml_files.load(typed.choices, groups), typed)


def _changed(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A whole config with settings on top; files cannot be chosen any more."""
    typed = parse(overrides, yaml_files.groups())
    typed.refuse_sweeps()
    typed.refuse_choices()
    yaml_files.register_resolvers()
    return _merged(config, typed)


def _merged(config: DictConfig, typed: Typed) -> DictConfig:
    """The built-in defaults beneath a config, so that every key can be interpolated, and the settings on top."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    names = yaml_files.default_names()
    for group in ("algo", "env"):
        node = OmegaConf.select(config, group, throw_on_missing=False)
        if not OmegaConf.is_dict(node):
            raise UserError(f"{group}={spell(node)}: this is a group of keys, not a single value")
    settings = []
    for setting in typed.settings:
        key = setting.key_or_group
        if setting.is_delete() or (key in names and setting.value() in (None, "")):
            parent, _, last = key.rpartition(".")  # what no file says any more is the built-in default
            node = OmegaConf.select(config, parent) if parent else config
            if OmegaConf.is_dict(node) and last in node.keys():  # noqa: SIM118  `in node` would resolve its value
                del node[last]
        else:
            settings.append(setting)
    name = OmegaConf.select(config, "algo.name", throw_on_missing=False)
    if name is not None and name not in ALGORITHMS:
        known = f"{nearest(str(name), ALGORITHMS)}; algorithms: {', '.join(ALGORITHMS)}"
        raise UserError(f"algo.name={spell(name)}: not an algorithm here{known}")
    algo = {} if name is None else defaults(ALGORITHMS[name].Config)
    merged = OmegaConf.create(defaults(RunConfig) | names | {"algo": algo})
    merged.merge_with(config)
    for setting in settings:
        key, value = setting.key_or_group, setting.value()
        try:
            OmegaConf.update(merged, key, value, merge=True, force_add=True)
        except GrammarParseError:
            raise UserError(f"{key}={spell(value)}: the interpolation cannot be read; write it as ${{key}}") from None
        except (OmegaConfBaseException, ValueError, TypeError, IndexError, AssertionError) as error:
            raise UserError(f"{key}={spell(value)}: {mistakes.one_line(error)}") from None
    return merged


def _checked(config: DictConfig | dict[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """A whole config, resolved and checked, and the same as plain values."""
    tree: Any = config
    if not isinstance(config, dict):
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            tree = OmegaConf.to_container(config, resolve=True)
        except OmegaConfBaseException as error:
            raise UserError(mistakes.of_interpolation(error, config)) from None
    refuse_other_algorithms(tree)
    name_classes(tree)
    checked = build_config(tree)
    values = plain(checked)
    refuse_secrets(values)
    return checked, values


def _interpolated(checked: Any, written: Any) -> Any:
    """The checked tree, with the interpolations that were written for its values."""
    if isinstance(written, str) and "${" in written:
        return written
    if isinstance(checked, Mapping) and isinstance(written, Mapping):
        return {key: _interpolated(value, written.get(key)) for key, value in checked.items()}
    return checked
