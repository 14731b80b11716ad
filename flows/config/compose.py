"""Composition of a checked config: Hydra composes the files, and the typed config of rlcore checks the result.

config files (the user's folders, then conf/)  ->  merged over the built-in defaults  ->  overridden by settings
->  interpolations resolved  ->  class strings replaced by names  ->  `build_config`
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.config import mistakes as sentences
from flows.config import yaml_files
from flows.config.exploration_names import name_exploration_metrics, name_exploration_run
from flows.config.overrides import ParsedOverrides, parse
from flows.config.sheeprl_names import add_class_names, name_classes, names_class
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS, refuse_unknown
from rlcore.config.run import RunConfig
from rlcore.config.schema import defaults
from rlcore.config.values import at, plain, spell
from rlcore.errors import Mistakes, NotSupported, UserError
from rlcore.run_config import build_config
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import printable_line
from rlcore.system.secrets import find_secrets, is_secret

if TYPE_CHECKING:
    from omegaconf import DictConfig

# How to fix a key whose value contains a password, if it is not enough to leave the password out.
ELSEWHERE = {
    "metric.logger.tracking_uri": "leave it null and put the whole address into MLFLOW_TRACKING_URI, or write it "
    "without user and password and put those into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, in the "
    "environment or in .env"
}
FIRST = (
    "exp=",
    "algo=",
    "algo.name=",
    "env=",
    "env.id=",
    "env.wrapper._target_=",
)  # errors that are reported before all others
# First words of errors about a missing suite, and of errors that follow from it.
ENVIRONMENT = ("env=", "env.wrapper._target_=", "env.id=")
OF_ITS_SUITE = ("unknown key 'env.", "env.id=", "env.wrapper.")
_LOCK = threading.Lock()  # Hydra's registries and parser are not thread-safe


def compose(overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """Compose and check the config of a new run.

    Args:
        overrides: command-line arguments, such as `["exp=ppo", "env.id=Acrobot-v1", "seed=3"]`.

    Returns:
        The typed config, and the same values as nested dicts for `config.yaml`.

    Raises:
        UserError: an argument or a config file has errors; the message lists all of them.
    """
    with _LOCK, _raise_together() as mistakes:
        return _check(_compose_files(overrides, mistakes), mistakes)


def compose_for_script(overrides: Sequence[str]) -> DictConfig:
    """Return the config of a new run for a user's script in SheepRL's style, with interpolations and `_target_` keys.

    The values are not checked yet, because the script may change the config; `compose_tree` checks them afterwards.
    """
    with _LOCK, _raise_together() as mistakes:
        config = _compose_files(overrides, mistakes)
        add_class_names(config)
        return config


def compose_existing(
    config_yaml: Path, overrides: Sequence[str], stored: Mapping[str, Any] | None = None
) -> tuple[RunConfig, dict[str, Any]]:
    """Compose and check the config of an existing run.

    Args:
        config_yaml: the file `config.yaml` of the run.
        overrides: `key=value` arguments that change single keys of the file.
        stored: content of the file; None: it is read.

    Returns:
        The typed config, and the same values as nested dicts for `config.yaml`.

    Raises:
        UserError: an argument or the file has errors; the message lists all of them.
    """

    def read(file: Path) -> Mapping[str, Any]:
        return RunDirectory(file.parent).read_config() if stored is None else stored

    return _compose_from(config_yaml, read, overrides)


def compose_extended(run: RunDirectory, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """Compose and check the config of a run that extends another run.

    The file `config.yaml` of that run has no interpolations. They are restored. For example, `algo.dense_act=relu` then
    also changes the networks whose activation is `${algo.dense_act}` in the config files.

    Args:
        run: the run that is extended.
        overrides: `key=value` arguments that change single keys of its config, or choose a logger or an optimizer.

    Returns:
        The typed config, and the same values as nested dicts for `config.yaml`.

    Raises:
        UserError: an argument or the file has errors; the message lists all of them.
    """

    def adapt(stored: Mapping[str, Any], choices: Sequence[str]) -> Mapping[str, Any]:
        _, typed = plugins.take_from(run.read_overrides())  # a plugin is imported only if the user names it again
        last = {_key(override): override for override in typed}  # a resumed run can have two
        for before in (last, {"exp": f"exp={at(stored, 'algo.name')}"}):  # none in a run from a parameter file
            with suppress(UserError):
                files = _compose_files([*before.values()], Mistakes())
                break
        else:
            if choices:
                raise UserError(f"{choices[0]}: the config files of {run.path} are not here any more; set single keys")
            return stored
        return _with_files(_with_interpolations(stored, files), files, before, choices)

    return _compose_from(run.config, lambda file: run.read_config(), overrides, adapt)


def _with_files(
    stored: Mapping[str, Any], files: DictConfig, recorded: Mapping[str, str], choices: Sequence[str]
) -> Mapping[str, Any]:
    """Return the config of a run, in which the chosen config files replace those of the run.

    Only the keys whose values differ between the files change. Other keys keep the values that the run has.

    Args:
        stored: config of the run.
        files: config that the recorded overrides give.
        recorded: key or group -> recorded override of the run.
        choices: overrides that choose files, such as `logger@metric.logger=wandb`.
    """
    from omegaconf import OmegaConf

    config = OmegaConf.create(dict(stored))
    for choice in choices:
        group, _, place = choice.partition("=")[0].partition("@")
        replaced = (group, f"{group}@{place}", f"{place}.name")
        others = [override for key, override in recorded.items() if key not in replaced]
        before, after = (
            at(OmegaConf.to_container(tree, resolve=False), place, {})
            for tree in (files, _compose_files([*others, choice], Mistakes()))
        )
        for key, value in after.items():
            if key == "name" or value != before.get(key):
                OmegaConf.update(config, f"{place}.{key}", value, force_add=True)
    result: Any = OmegaConf.to_container(config, resolve=False)
    return result


def _key(override: str) -> str:
    """Return the key or group of an override."""
    return override.lstrip("+~").partition("=")[0]


def _with_interpolations(stored: Mapping[str, Any], files: DictConfig) -> Any:
    """Return `stored`, in which each interpolation of `files` that gives the same value replaces this value."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = OmegaConf.create(dict(stored))

    def restore(node: Any, texts: Any) -> None:
        for key, text in texts.items():
            if key not in node:
                continue
            if isinstance(text, str) and "${" in text:
                value = _plain(node[key])
                node[key] = text
                with suppress(OmegaConfBaseException):
                    if _plain(node[key]) == value:
                        continue
                node[key] = value
            elif isinstance(text, Mapping) and OmegaConf.is_dict(node[key]):
                restore(node[key], text)

    texts: Any = OmegaConf.to_container(files, resolve=False)
    for group in texts:
        if OmegaConf.is_dict(config.get(group)) and isinstance(texts[group], Mapping):
            restore(config[group], texts[group])
    return OmegaConf.to_container(config, resolve=False)


def _plain(value: Any) -> Any:
    """Return a value of a config, without interpolations; a node as nested dicts and lists."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def compose_params(file: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """Compose and check a config from the parameter file of a DVC pipeline.

    Args:
        file: a parameter file with the content that `params_yaml` returns.
        overrides: `key=value` arguments that change single keys of the file.

    Returns:
        The typed config, and the same values as nested dicts for `config.yaml`.

    Raises:
        UserError: an argument or the file has errors; the message lists all of them.
    """
    from omegaconf import OmegaConf

    return _compose_from(file, OmegaConf.load, overrides)  # as Hydra reads files: 1e-3 is a number


def compose_tree(tree: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """Check a config that `hydra.main` or a user's program has composed.

    Args:
        tree: the config, a dict or an OmegaConf `DictConfig`; it may contain interpolations.

    Returns:
        The typed config, and the same values as nested dicts for `config.yaml`.

    Raises:
        UserError: the config has errors; the message lists all of them.
    """
    from omegaconf import OmegaConf

    with _LOCK, _raise_together() as mistakes:
        plugins.load()
        yaml_files.register_resolvers()
        whole: Any = tree  # a DictConfig, whose interpolations are kept, or plain
        composed: Any = OmegaConf.create(whole)
        if OmegaConf.is_config(whole):
            OmegaConf.copy_cache(whole, composed)  # keeps the time in run_name if a script has already read it
        return _check(_merge(composed, ParsedOverrides(), mistakes), mistakes)


def params_yaml(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the content of the parameter file `params.yaml` of a DVC pipeline.

    The content has all keys of the config; interpolations are not replaced by their values. Keys that name a run and
    its folders are omitted, because they are not parameters of an experiment. The key `label` is kept if the user has
    written the preset, because the names of the experiment and of the models contain the label.
    """
    from omegaconf import OmegaConf

    with _LOCK, _raise_together() as mistakes:
        composed = _compose_files(overrides, mistakes)
        tree = _interpolate(_check(composed, mistakes)[1], OmegaConf.to_container(composed, resolve=False))
    names = yaml_files.default_names()
    named = {"label"} if tree["label"] != names["label"] else set[str]()
    return {key: value for key, value in tree.items() if key not in names or key in named}


def dump(tree: Mapping[str, Any]) -> str:
    """Return a config (nested dicts without interpolations) as YAML; loading the YAML text gives the same values."""
    return yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True, width=120)


@contextmanager
def _raise_together() -> Iterator[Mistakes]:
    """Context manager that collects all errors of a config and raises them as one error at its end."""
    mistakes = Mistakes()
    with mistakes.catch():
        yield mistakes
    mistakes.raise_collected(FIRST)


def _compose_files(overrides: Sequence[str], mistakes: Mistakes) -> DictConfig:
    """Merge the built-in defaults, the config files chosen by overrides, and the keys set by overrides.

    Interpolations are not resolved. Errors are collected in `mistakes`.
    """
    groups = yaml_files.groups()
    typed = parse(without_plugins(overrides), groups, mistakes)
    with mistakes.catch():
        typed.refuse_sweeps()
    if typed.refused & {"exp", "algo"} or not any(choice.startswith("exp=") for choice in typed.choices):
        mistakes.raise_collected(FIRST)  # without an algorithm the set of keys is unknown
    return _merge(yaml_files.load(typed.choices, groups), typed, mistakes)


def _compose_from(
    file: Path,
    read: Callable[[Path], Any],
    overrides: Sequence[str],
    adapt: Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Any]] | None = None,
) -> tuple[RunConfig, dict[str, Any]]:
    """Compose and check a config from a file, which `read` reads, and from overrides of single keys.

    Keys that the file does not contain get their built-in defaults. For an extended run, `adapt` changes the content of
    the file; its arguments are the content and the overrides that choose config files.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with _LOCK, _raise_together() as mistakes:
        try:
            stored = OmegaConf.create(read(file) or {})
        except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise UserError(f"{file}: cannot be read ({sentences.one_line(error)})") from None
        if not isinstance(stored, DictConfig) or not {"algo", "env"} <= set(stored):
            raise UserError(
                f"{file}: does not contain the parameters of a run; `shepherd config exp=ppo --params` prints a valid "
                "file"
            )
        typed = parse(without_plugins(overrides), yaml_files.groups(), mistakes)
        typed.refuse_sweeps()
        typed.refuse_choices(extends=adapt is not None)
        yaml_files.register_resolvers()
        if adapt is not None:
            plain_tree: Any = OmegaConf.to_container(stored, resolve=False)
            stored = OmegaConf.create(dict(adapt(plain_tree, typed.choices)))
        return _check(_merge(stored, typed, mistakes), mistakes)


def without_plugins(overrides: Sequence[str]) -> list[str]:
    """Import the plugins of the override `plugins=[…]`, and return the other overrides.

    Child processes of this process import the plugins, too.
    """
    modules, others = plugins.take_from(overrides)
    plugins.name(modules)
    plugins.load()
    return others


def _merge(config: DictConfig, typed: ParsedOverrides, mistakes: Mistakes) -> DictConfig:
    """Return the built-in defaults, overridden by a config and then by command-line settings.

    The result contains every key, so an interpolation can refer to any of them.
    """
    from omegaconf import OmegaConf

    for group in ("algo", "env"):
        node = OmegaConf.select(config, group, throw_on_missing=False)
        if not OmegaConf.is_dict(node):
            raise UserError(
                f"{group}={spell(node)}: this is a group of keys, not a single value; set its keys, as in "
                f"{group}.KEY=VALUE"
            )
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
        if names_class(key, name):  # a setting overrides the class named by a file of SheepRL
            _set(merged, f"{key.removesuffix('.name')}._target_", None, merge=False)
        taken_back = setting.is_delete() or (key in names and value in (None, ""))
        with mistakes.catch():
            _set(merged, key, at(built_in, key) if taken_back else value, merge=not taken_back)
    return merged


def _set(config: DictConfig, key: str, value: Any, merge: bool) -> None:
    """Set a dotted key of a config in place.

    If `value` is a mapping, `merge=True` changes only the keys that `value` contains. `merge=False` removes the other
    keys of the present mapping.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    try:
        OmegaConf.update(config, key, value, merge=merge, force_add=True)
    except GrammarParseError:
        raise UserError(f"{key}={spell(value)}: the interpolation cannot be read; write it as ${{key}}") from None
    except (OmegaConfBaseException, ValueError, TypeError, IndexError, AssertionError) as error:
        raise UserError(f"{key}={spell(value)}: {sentences.one_line(error)}") from None


def _check(config: DictConfig, mistakes: Mistakes) -> tuple[RunConfig, dict[str, Any]]:
    """Resolve the interpolations of a config and check all values.

    Returns the typed config, and the same values as nested dicts. Errors are raised together with those that `mistakes`
    already contains.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(sentences.of_interpolation(error, config)) from None
    tree["plugins"] = plugins.list_named()  # includes the plugins that a config file names
    checked = None
    for check in (name_exploration_run, name_exploration_metrics, sentences.refuse_absent_keys, name_classes):
        with mistakes.catch():
            check(tree)
    with mistakes.catch():
        checked = build_config(tree)
    if checked is None or mistakes:
        _add_mistakes_of_environment(tree, mistakes)
        mistakes.leave_out(
            lambda error: _is_interpolated(config, (key := str(error).partition("=")[0])) and key != "env.id"
        )
        if mistakes.any(lambda error: isinstance(error, NotSupported) and str(error).startswith(ENVIRONMENT)):
            mistakes.leave_out(
                lambda error: not isinstance(error, NotSupported) and str(error).startswith(OF_ITS_SUITE)
            )
        mistakes.raise_collected(FIRST)
    values = plain(checked)
    for key, value in find_secrets(values):
        read = "read it from an environment variable in your code"
        fix = ELSEWHERE.get(key, read if is_secret(key) else "write the address without it")
        raise UserError(f"{key}={value}: must not contain a password, because a config is stored with its run; {fix}")
    return checked, values


def _is_interpolated(config: DictConfig, key: str) -> bool:
    """Return True if the value of a key is an interpolation; an error in this value is then caused by another key."""
    from omegaconf import OmegaConf

    group, _, name = key.rpartition(".")
    node = OmegaConf.select(config, group, throw_on_missing=False) if group else config
    return OmegaConf.is_dict(node) and name in node and OmegaConf.is_interpolation(node, name)


def _add_mistakes_of_environment(tree: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Add an error to `mistakes` if the environment is unknown or its suite does not accept its settings."""
    from rlcore.envs.suites.ids import known_id  # imports gymnasium, which composition does not need otherwise
    from rlcore.envs.suites.registry import suite_with

    env_id, wrapper = at(tree, "env.id"), at(tree, "env.wrapper") or {}
    if not isinstance(wrapper, Mapping):
        return  # already reported
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


def _interpolate(checked: Any, written: Any) -> Any:
    """Return the values of `checked`, but use the value of `written` for each key whose value is an interpolation."""
    if isinstance(written, str) and "${" in written:
        return written
    if isinstance(checked, Mapping) and isinstance(written, Mapping):
        return {key: _interpolate(value, written.get(key)) for key, value in checked.items()}
    return checked
