"""From a command line to a checked config: Hydra composes the files, the typed config of rlcore checks the result.

files of the groups (the user's folders, then conf/)  ->  built-in defaults beneath  ->  settings on top
->  interpolations resolved  ->  class strings read as names  ->  `build_config`
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.config import mistakes as sentences
from flows.config import yaml_files
from flows.config.absent_keys import refuse_absent_keys
from flows.config.overrides import ParsedOverrides, parse
from flows.config.sheeprl_names import add_class_names, name_classes, names_class
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS, refuse_unknown
from rlcore.config.groups import RunConfig
from rlcore.config.schema import defaults
from rlcore.config.values import at, plain, spell
from rlcore.errors import Mistakes, UserError
from rlcore.run_config import build_config
from rlcore.store.run_files import read_mapping
from rlcore.system.printable import printable_line
from rlcore.system.secrets import is_secret, redact

if TYPE_CHECKING:
    from omegaconf import DictConfig

# What to do with a key whose value holds a password, where leaving it out is not all.
ELSEWHERE = {
    "metric.logger.tracking_uri": "leave it null and put the whole address into MLFLOW_TRACKING_URI, or write it "
    "without user and password and put those into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, in the "
    "environment or in .env"
}
FIRST = ("exp=", "algo=", "algo.name=", "env=", "env.id=", "env.wrapper._target_=")  # mistakes that outweigh all others
# Beginnings of the mistake that names a suite which is not there, and of those which follow from it.
ENVIRONMENT = ("env=", "env.wrapper._target_=", "env.id=")
OF_ITS_SUITE = ("unknown key 'env.", "env.id=", "env.wrapper.")
_LOCK = threading.Lock()  # Hydra's registries and parser are not made for several threads


def compose(overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """The checked config of a new run from what a user typed, as `["exp=ppo", "env.id=Acrobot-v1", "seed=3"]`.

    Gives the config, and the same as the plain tree that `config.yaml` holds; a mistake anywhere is a `UserError`.
    """
    with _LOCK, _tell_at_once() as mistakes:
        return _check(_compose_files(overrides, mistakes), mistakes)


def compose_for_script(overrides: Sequence[str]) -> DictConfig:
    """Return the config of a new run as SheepRL hands it to a script: interpolations kept, classes named by `_target_`.

    `compose_tree` checks it, once the script has changed what it wants.
    """
    with _LOCK, _tell_at_once() as mistakes:
        config = _compose_files(overrides, mistakes)
        add_class_names(config)
        return config


def compose_existing(config_yaml: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """As `compose`, from the `config.yaml` of a run that exists and settings of single keys on top."""
    return _compose_from(config_yaml, _read_stored, overrides)


def _read_stored(file: Path) -> dict[str, Any]:
    return read_mapping(file, "restore it from a copy, or move the run's folder away", ("algo.name", "env.id"))


def compose_params(file: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """As `compose`, from a parameter file as `params_yaml` makes it and settings of single keys on top."""
    from omegaconf import OmegaConf

    return _compose_from(file, OmegaConf.load, overrides)  # as Hydra reads files: 1e-3 is a number


def compose_tree(tree: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """As `compose`, from a config that `hydra.main` or a user's own program has put together, interpolations kept."""
    from omegaconf import OmegaConf

    with _LOCK, _tell_at_once() as mistakes:
        plugins.load()
        yaml_files.register_resolvers()
        whole: Any = tree  # a DictConfig, whose interpolations are kept, or plain
        composed: Any = OmegaConf.create(whole)
        if OmegaConf.is_config(whole):
            OmegaConf.copy_cache(whole, composed)  # the time in run_name that a script has read already
        return _check(_merge(composed, ParsedOverrides(), mistakes), mistakes)


def params_yaml(overrides: Sequence[str]) -> dict[str, Any]:
    """The content of a parameter file, `params.yaml`: every key, interpolations kept.

    The keys that name a run and its folders are left out: they are no parameters of an experiment. The label of an own
    preset is kept, for the names of the experiment and the models.
    """
    from omegaconf import OmegaConf

    with _LOCK, _tell_at_once() as mistakes:
        composed = _compose_files(overrides, mistakes)
        tree = _interpolate(_check(composed, mistakes)[1], OmegaConf.to_container(composed, resolve=False))
    names = yaml_files.default_names()
    named = {"label"} if tree["label"] != names["label"] else set[str]()
    return {key: value for key, value in tree.items() if key not in names or key in named}


def dump(tree: Mapping[str, Any]) -> str:
    """A plain config tree as the YAML text of `config.yaml`; reading it back gives the same values."""
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120)


@contextmanager
def _tell_at_once() -> Iterator[Mistakes]:
    """Gather what is wrong with a config inside the `with`, and tell it at its end."""
    mistakes = Mistakes()
    with mistakes.catch():
        yield mistakes
    mistakes.raise_collected(FIRST)


def _compose_files(overrides: Sequence[str], mistakes: Mistakes) -> DictConfig:
    """Files, built-in defaults and settings together; interpolations are not resolved."""
    groups = yaml_files.groups()
    typed = parse(without_plugins(overrides), groups, mistakes)
    with mistakes.catch():
        typed.refuse_sweeps()
    if typed.refused & {"exp", "algo"} or not any(choice.startswith("exp=") for choice in typed.choices):
        mistakes.raise_collected(FIRST)  # which keys there are is not known
    return _merge(yaml_files.load(typed.choices, groups), typed, mistakes)


def _compose_from(
    file: Path, read: Callable[[Path], Any], overrides: Sequence[str]
) -> tuple[RunConfig, dict[str, Any]]:
    """From a file with a whole config; keys that it does not name have their built-in defaults."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with _LOCK, _tell_at_once() as mistakes:
        try:
            stored = OmegaConf.create(read(file) or {})
        except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise UserError(f"{file}: cannot be read ({sentences.one_line(error)})") from None
        if not isinstance(stored, DictConfig) or not {"algo", "env"} <= set(stored):
            raise UserError(f"{file}: not the parameters of a run; `shepherd config exp=ppo --params` prints such")
        typed = parse(without_plugins(overrides), yaml_files.groups(), mistakes)
        typed.refuse_sweeps()
        typed.refuse_choices()
        yaml_files.register_resolvers()
        return _check(_merge(stored, typed, mistakes), mistakes)


def without_plugins(overrides: Sequence[str]) -> list[str]:
    """Name and import the modules that the user has typed, for children of this process too; the other overrides."""
    modules, others = plugins.take_from(overrides)
    plugins.name(modules)
    plugins.load()
    return others


def _merge(config: DictConfig, typed: ParsedOverrides, mistakes: Mistakes) -> DictConfig:
    """The built-in defaults beneath a config, so that every key can be interpolated, and the settings on top."""
    from omegaconf import OmegaConf

    for group in ("algo", "env"):
        node = OmegaConf.select(config, group, throw_on_missing=False)
        if not OmegaConf.is_dict(node):
            raise UserError(f"{group}={spell(node)}: this is a group of keys, not a single value")
    plugins.require(OmegaConf.select(config, "plugins") or ())
    name = OmegaConf.select(config, "algo.name", throw_on_missing=False)
    if name is not None:
        refuse_unknown(spell(name))
    names, algo = yaml_files.default_names(), {} if name is None else defaults(ALGORITHMS[name].Config)
    built_in = defaults(RunConfig) | names | {"algo": algo}
    merged = OmegaConf.create(built_in)
    merged.merge_with(config)
    OmegaConf.copy_cache(config, merged)
    for setting in typed.settings:
        key, value = setting.key_or_group, setting.value()
        if names_class(key, name):  # what was typed wins over the class that a file of SheepRL names
            _set(merged, f"{key.removesuffix('.name')}._target_", None, merge=False)
        taken_back = setting.is_delete() or (key in names and value in (None, ""))
        with mistakes.catch():
            _set(merged, key, at(built_in, key) if taken_back else value, merge=not taken_back)
    return merged


def _set(config: DictConfig, key: str, value: Any, merge: bool) -> None:
    """Give a key of a config its value, in place; of a mapping, with `merge`, the keys that are named."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    try:
        OmegaConf.update(config, key, value, merge=merge, force_add=True)
    except GrammarParseError:
        raise UserError(f"{key}={spell(value)}: the interpolation cannot be read; write it as ${{key}}") from None
    except (OmegaConfBaseException, ValueError, TypeError, IndexError, AssertionError) as error:
        raise UserError(f"{key}={spell(value)}: {sentences.one_line(error)}") from None


def _check(config: DictConfig, mistakes: Mistakes) -> tuple[RunConfig, dict[str, Any]]:
    """A whole config, resolved and checked, and the same as plain values."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(sentences.of_interpolation(error, config)) from None
    tree["plugins"] = plugins.list_named()  # those of a file among them
    checked = None
    for check in (refuse_absent_keys, name_classes):
        with mistakes.catch():
            check(tree)
    with mistakes.catch():
        checked = build_config(tree)
    if checked is None or mistakes:
        _add_mistakes_of_environment(tree, mistakes)
        mistakes.leave_out(
            lambda sentence: _is_interpolated(config, sentence.partition("=")[0]) and not sentence.startswith("env.id=")
        )
        if mistakes.any(lambda sentence: sentence.startswith(ENVIRONMENT) and "is not there yet" in sentence):
            mistakes.leave_out(lambda sentence: sentence.startswith(OF_ITS_SUITE) and "not there yet" not in sentence)
        mistakes.raise_collected(FIRST)
    values = plain(checked)
    _refuse_secrets(values)
    return checked, values


def _is_interpolated(config: DictConfig, key: str) -> bool:
    """Tell whether a key takes its value from another one, with which its mistake comes and goes."""
    from omegaconf import OmegaConf

    group, _, name = key.rpartition(".")
    node = OmegaConf.select(config, group, throw_on_missing=False) if group else config
    return OmegaConf.is_dict(node) and name in node and OmegaConf.is_interpolation(node, name)


def _add_mistakes_of_environment(tree: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Add to a config's mistakes that its environment is not there, and what its suite finds wrong."""
    from rlcore.envs.suites.ids import known_id  # gymnasium, needed nowhere else in a config
    from rlcore.envs.suites.registry import suite_with

    env_id, wrapper = at(tree, "env.id"), at(tree, "env.wrapper") or {}
    if not isinstance(wrapper, Mapping):
        return  # one of the mistakes
    named = isinstance(env_id, str) and env_id not in ("", "???") and printable_line(env_id) == env_id
    if named and "_target_" not in wrapper:
        devices = at(tree, "fabric.devices")
        devices = len(devices) if isinstance(devices, list) else devices  # a list of GPUs
        counts = [count for count in (at(tree, "env.num_envs"), devices) if isinstance(count, int)]
        with mistakes.catch():
            env_id = known_id(env_id)
            suite = suite_with(env_id)
            if suite is not None:
                suite.check(env_id, wrapper, max(1, math.prod(counts)))


def _refuse_secrets(value: Any, key: str = "") -> None:
    """Refuse a password, in an address or by its key's name: a config is stored with the run, and shown by MLflow."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_secrets(name, key)
            _refuse_secrets(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for part in value:
            _refuse_secrets(part, key)
    elif isinstance(value, str) and (redact(value) != value or (value and is_secret(key))):
        read = "have what needs it read it from the environment"
        fix = ELSEWHERE.get(key, read if is_secret(key) else "write the address without it")
        raise UserError(f"{key}={value}: a config is stored with its run, so no password may stand in it; {fix}")


def _interpolate(checked: Any, written: Any) -> Any:
    """The checked tree, with the interpolations that were written for its values."""
    if isinstance(written, str) and "${" in written:
        return written
    if isinstance(checked, Mapping) and isinstance(written, Mapping):
        return {key: _interpolate(value, written.get(key)) for key, value in checked.items()}
    return checked
