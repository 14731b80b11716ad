"""Conversion of the names and class names in SheepRL's config files to those of this project.

SheepRL imports and instantiates the classes named by `_target_` and `dense_act`. Here such a string is looked up in
sheeprl_names.yaml, and no config causes an import. A string that is not in this file is an error. Keys that only
configure the named class in SheepRL are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.callbacks import KEY as CALLBACKS
from rlcore.config.groups import REDUCTIONS
from rlcore.config.schema import arguments, groups
from rlcore.config.stop import KEY as STOP
from rlcore.config.values import at, nearest, spell
from rlcore.errors import Mistakes, NotSupported, UserError
from rlcore.nn.network_keys import ACTIVATIONS
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.store.run_files import FAST

if TYPE_CHECKING:
    from omegaconf import DictConfig

Tree = dict[str, Any]

NAMES: Tree = yaml.load(Path(__file__).with_suffix(".yaml").read_text(), FAST)
OPTIMIZERS: dict[str, str] = NAMES["optimizer"]["classes"]
LOGGERS: dict[str, str] = NAMES["groups"]["metric.logger"]["classes"]
NETWORKS: dict[str, str] = NAMES["networks"]
MAKERS: list[str] = NAMES["groups"]["env.wrapper"]["classes"]
SHEEPRL_RESTARTS = 2  # within 300 s, as in SheepRL's Dreamers
MODEL_KEYS = ("model_name", "description", "tags")


def name_classes(tree: Tree) -> None:
    """Replace the class strings in a config, such as `torch.optim.Adam`, by names of this project, such as `adam`.

    Args:
        tree: the config as nested dicts without interpolations; modified in place.

    Raises:
        UserError: the config contains class strings that are not allowed; the message lists all of them.
    """
    name, mistakes = at(tree, "algo.name"), Mistakes()
    for place, rewrite in _REWRITES.items():
        if isinstance(node := at(tree, place), dict):
            with mistakes.catch():
                rewrite(node, place)
    if isinstance(node := at(tree, "model_manager.models"), dict):
        with mistakes.catch():
            _models(node, "model_manager.models", ALGORITHMS.get(str(name)))
    optimizers = dict.fromkeys(_optimizers(name), NAMES["optimizer"])
    for place, known in (NAMES["groups"] | optimizers).items():
        if isinstance(node := at(tree, place), dict) and not (place == "env.wrapper" and _is_own(node.get("_target_"))):
            if (target := node.pop("_target_", None)) is not None:
                with mistakes.catch():
                    own = _look_up(f"{place}._target_", target, known["classes"])
                    node |= {"name": own} if isinstance(known["classes"], Mapping) else {}
            for key in known["removed"]:
                node.pop(key, None)
    if isinstance(tree.get("metric"), dict) and tree["metric"].get("logger", "") is None:
        tree["metric"]["logger"] = {"name": "none"}
    for key, node in [*_targets(tree)]:
        with mistakes.catch():
            if key == "env.wrapper._target_":  # the user's own class, with its arguments
                target = str(node["_target_"])
                same_module = [t for t in _targets_of_suites() if t.rpartition(".")[0] == target.rpartition(".")[0]]
                plugins.refuse_foreign(key, target, nearest(target, same_module))
                continue
            if key.startswith((f"{STOP}.", f"{CALLBACKS}.")):  # the user's own class; checked when the config is built
                continue
            advice = [text for group, text in NAMES["no_class"].items() if key.startswith(f"{group}.")]
            listed = f"`shepherd train -h {key.partition('.')[0]}` lists the allowed keys and values"
            value = spell(node.pop("_target_"))
            raise UserError(f"{key}={value}: this key accepts no class; {[*advice, listed][0]}")
    mistakes.raise_collected()


def add_class_names(config: DictConfig) -> None:
    """Add the `_target_` keys of SheepRL's configs to a composed config, in place.

    Each added value is an interpolation of the key of this project that selects the class: `env.id` for the
    environment, `name` for an optimizer or a logger. The value therefore stays correct if a script changes that key.
    """
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("sheeprl_class"):
        OmegaConf.register_new_resolver("sheeprl_class", _class_of)
    tree: Any = OmegaConf.to_container(config, resolve=False)
    added: dict[str, Tree] = {
        place: {"_target_": NAMES["groups"][place]["classes"][0]} for place in ("fabric", "metric.aggregator")
    }
    added["fabric"]["callbacks"] = [{"_target_": NAMES["callbacks"][0], "keep_last": "${checkpoint.keep_last}"}]
    added["env.wrapper"] = {"_target_": "${sheeprl_class:env,${env.id}}", "id": "${env.id}"}
    for place in _optimizers(at(tree, "algo.name")):
        added[place] = {"_target_": "${sheeprl_class:optimizer,${.name}}"}
        if (named := OPTIMIZERS.get(str(at(tree, f"{place}._target_")))) is not None:
            OmegaConf.update(config, place, {"name": named, **added[place]})
    added["metric.logger"] = {"_target_": "${sheeprl_class:logger,${.name}}"}
    for place, keys in added.items():
        node = OmegaConf.select(config, place, throw_on_missing=False)
        if OmegaConf.is_dict(node) and "_target_" not in node:
            node.merge_with({key: value for key, value in keys.items() if key not in node})


def _class_of(kind: str, name: str) -> str | None:
    """Return SheepRL's class for the environment, optimizer or logger `name`; None if SheepRL has no such class.

    `kind` is "env", "optimizer" or "logger".
    """
    if kind == "env":
        from rlcore.envs.suites.registry import suite_with  # gymnasium, needed only if a script reads the key

        suite = suite_with(name)
        return next(iter(suite.targets if suite else ()), "gymnasium.make")
    return next((known for known, own in (OPTIMIZERS if kind == "optimizer" else LOGGERS).items() if own == name), None)


def names_class(key: str, algorithm: str | None) -> bool:
    """Return True if a key, such as `algo.optimizer.name`, selects the class of an optimizer or a logger by name.

    SheepRL's files select the class with the key `_target_` instead.
    """
    group, _, last = key.rpartition(".")
    return last == "name" and group in ("metric.logger", *_optimizers(algorithm))


def _optimizers(algorithm: Any) -> list[str]:
    """Return the dotted keys of the optimizers in the config of an algorithm."""
    module = ALGORITHMS.get(str(algorithm))
    return [*groups(module.Config, OptimizerConfig, "algo.")] if module else ["algo.optimizer"]


def _is_own(target: Any) -> bool:
    """Return True if a value may be an environment class of the user: a dotted name outside of Gymnasium."""
    return isinstance(target, str) and re.fullmatch(r"(?!gym\.|gymnasium\.)\w+(\.\w+)+", target) is not None


def _targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Tree]]:
    """Yield the dotted key of each `_target_` in a config, and the mapping that contains the `_target_`."""
    if isinstance(value, dict) and "_target_" in value:
        yield f"{prefix}_target_", value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _targets(item, f"{prefix}{key}.")


def _look_up(key: str, value: Any, table: Collection[str]) -> str:
    """Return the name for a class string in a table, or the string itself if the table is only a list.

    Raises UserError if the table does not contain the string.
    """
    if isinstance(value, str) and value in table:
        return table[value] if isinstance(table, Mapping) else value
    raise UserError(
        f"{key}={spell(value)}: unknown class; a config cannot import classes; "
        f"allowed: {', '.join(table)}{nearest(spell(value), table)}"
    )


def _algorithm(node: Tree, place: str) -> None:
    """Convert the keys of an algorithm from SheepRL's form, in place.

    Classes of activations and networks are replaced by names of this project. The mapping `compile` is replaced by the
    value of its key `enabled`.
    """
    node.pop("optimier", None)  # misspelled key in SheepRL's sac_benchmarks, unused there, too
    module = ALGORITHMS.get(str(node.get("name")))
    if "world_model" in node and not (module and "player" in {field.name for field in fields(module.Config)}):
        node.pop("player", None)  # its only key repeats a key of the world model
    if isinstance(node.get("player"), dict):
        node["player"].pop("discrete_size", None)  # repeats a key of the world model, too
    for argument in arguments(module.Config) if module else ():
        group, _, last = argument.key.rpartition(".")
        part = at(node, group) if group else node
        if argument.choices == tuple(ACTIVATIONS) and isinstance(part, dict) and isinstance(part.get(last), str):
            part[last] = _activation(part[last])
        if last == "cls" and isinstance(part, dict) and part.get(last) in NETWORKS:
            part[last] = NETWORKS[part[last]]
    if isinstance(node.get("compile"), dict):
        node["compile"] = _compile(node.pop("compile"), f"{place}.compile")


def _activation(text: str) -> str:
    """Convert `torch.nn.Tanh`, `torch.nn.modules.activation.Tanh` or `Tanh` to `tanh`; return other text unchanged."""
    module, _, name = text.rpartition(".")
    if module in ("", "torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear", "nn"):
        return NAMES["activations"].get(name, text)
    return text


def _compile(node: Tree, key: str) -> Any:
    """Return the value of `enabled` in SheepRL's mapping `compile`; raise UserError if it has an unknown key."""
    for known in node:
        if known not in ("enabled", "mode", "player", "dynamic", "fullgraph"):
            hint = nearest(str(known), ("enabled", "mode", "player")) or f"; write {key}=auto, true or false"
            raise UserError(f"unknown key '{key}.{known}' (value {spell(node[known])!r}){hint}")
    return node.get("enabled", "auto")


def _env(node: Tree, place: str) -> None:
    """Convert the keys of an environment from SheepRL's form, in place.

    - `wrapper` keeps only the arguments of the environment and, if it is a class of the user, its `_target_`.
    - `restart_on_exception=true` is converted to a number of attempts.
    - `max_episode_steps=-1` is converted to null (no limit).

    Raises UserError if the class or the id in `wrapper` contradicts `env.id`.
    """
    if isinstance(restart := node.get("restart_on_exception"), bool):
        node["restart_on_exception"] = {"attempts": SHEEPRL_RESTARTS if restart else 0}
    if node.get("max_episode_steps") == -1:  # SheepRL's value for no limit
        node["max_episode_steps"] = None
    wrapper = node.get("wrapper")
    if wrapper is None or wrapper == "???":
        node["wrapper"] = {}
    elif isinstance(wrapper, dict):
        target, theirs = wrapper.get("_target_"), ""
        if isinstance(target, str) and _means_suite(target):
            theirs, target = wrapper.pop("_target_"), None
        _unwrap(wrapper, node.get("id"), f"{place}.wrapper.env")
        if "domain_name" in wrapper:
            node["id"] = _dmc_id(node.get("id"), wrapper)
        own = node.get("id")
        if theirs and theirs not in MAKERS:
            _refuse_other_suite(theirs, str(own), place)
        if isinstance(target, str) and (suite := NAMES["not_supported"]["environments"].get(target)):
            del wrapper["_target_"]
            raise NotSupported(
                f"{place}.wrapper._target_={target}: {suite} is not supported yet; `shepherd envs` lists the suites"
            )
        if wrapper.get("id", own) != own and not _is_own(target):
            raise UserError(
                f"{place}.wrapper.id={wrapper['id']}: differs from {place}.id={own}; "
                f"set {place}.id and leave {place}.wrapper.id out"
            )


def _unwrap(wrapper: Tree, env_id: Any, place: str) -> None:
    """Move the arguments of a nested environment from the key `env` of the mapping `wrapper` to this mapping.

    Raises UserError if the id of the nested environment differs from `env_id`. `place` is the dotted key of the nested
    environment, for the message.
    """
    inner = wrapper.get("env")
    if not isinstance(inner, dict) or not _means_suite(str(inner.get("_target_"))):
        return
    del wrapper["env"]
    _unwrap(inner, env_id, f"{place}.env")
    if inner.get("id", env_id) != env_id:
        raise UserError(f"{place}.id={inner['id']}: differs from env.id={env_id}; set env.id and leave {place}.id out")
    removed = ("_target_", *NAMES["groups"]["env.wrapper"]["removed"])
    wrapper |= {key: value for key, value in inner.items() if key not in removed and key not in wrapper}


def _dmc_id(env_id: Any, wrapper: Tree) -> Any:
    """Return the environment id of the DeepMind Control (DMC) task that `wrapper` names.

    If `env_id` is already the id of a DMC task, return `env_id`.
    """
    from rlcore.envs.suites.dmc import DMCSuite  # imports gymnasium

    named = f"{wrapper['domain_name']}_{wrapper.get('task_name')}"
    return env_id if str(env_id) in DMCSuite().ids() else named


def _means_suite(target: str) -> bool:
    """Return True if SheepRL's files use this class or function to create environments of a supported suite."""
    return target in MAKERS or target in _targets_of_suites()


def _targets_of_suites() -> list[str]:
    """Return the classes and functions that SheepRL's files use for the suites of this project."""
    from rlcore.envs.suites.registry import SUITES  # imports gymnasium, needed only if another class is named

    plugins.load()
    return [target for suite in SUITES.values() for target in suite.targets]


def _refuse_other_suite(target: str, env_id: str, place: str) -> None:
    """Raise UserError if the class of SheepRL that creates the environment and `env_id` belong to different suites."""
    from rlcore.envs.suites.registry import SUITES, suite_with

    there = suite_with(env_id)
    if there is not None and target not in there.targets:
        other = next(suite.name for suite in SUITES.values() if target in suite.targets)
        raise UserError(
            f"{place}.wrapper._target_={target}: creates environments of {other}, but {place}.id={env_id} is one "
            f"of {there.name}; set {place}.id to an environment of {other} (`shepherd envs` lists them), or set env= "
            f"to the file of {there.name}"
        )


def _fabric(node: Tree, place: str) -> None:
    callbacks = node.pop("callbacks", None) or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        target = callback.get("_target_") if isinstance(callback, dict) else callback
        _look_up(f"{place}.callbacks._target_", target, NAMES["callbacks"])
    if isinstance(node.get("precision"), int) and not isinstance(node["precision"], bool):
        node["precision"] = str(node["precision"])  # YAML reads `precision: 32` as a number


def _aggregator(node: Tree, place: str) -> None:
    """Replace classes of torchmetrics, such as `torchmetrics.MeanMetric`, by names of reductions, such as "mean"."""
    if not isinstance(node.get("metrics"), dict):
        return
    metrics, names = node.pop("metrics"), Tree()
    reductions = {name: name for name in REDUCTIONS} | NAMES["metrics"]
    for name, value in metrics.items():
        key = f"{place}.metrics.{name}"
        if isinstance(value, dict) and "_target_" in value:
            value, key = value["_target_"], f"{key}._target_"
        short = str(value).replace("torchmetrics.aggregation.", "torchmetrics.")
        if short not in reductions:
            allowed = f"must be one of {', '.join(reductions)}{nearest(spell(value), reductions)}"
            raise UserError(f"{key}={spell(value)}: {allowed}")
        names[name] = reductions[short]
    node["metrics"] = names


def _models(node: Tree, place: str, algorithm: Any) -> None:
    """Check the keys of `model_manager.models`, which defines the models that a run registers.

    Allowed keys are `agent` and the components that the algorithm exports. Components that SheepRL registers and this
    project does not are removed. Raises UserError for other keys.
    """
    known = ("agent", *(algorithm.Config.exported_components if algorithm else ()))
    for name in NAMES["models"]:
        if name not in known:
            node.pop(name, None)
    for name, model in node.items():
        if name not in known:
            raise UserError(
                f"unknown key '{place}.{name}' (value {spell(model)!r}); known keys: "
                f"{', '.join(map(repr, known))}{nearest(str(name), known)}"
            )
        for key in model if isinstance(model, dict) else ():
            if key not in MODEL_KEYS:
                hint = nearest(str(key), MODEL_KEYS) or f"; known keys: {', '.join(MODEL_KEYS)}"
                raise UserError(f"unknown key '{place}.{name}.{key}' (value {spell(model[key])!r}){hint}")
        if not isinstance(model, dict) and (model is not None or name == "agent"):  # null = do not register that part
            raise UserError(f"{place}.{name}={spell(model)}: must be a mapping of {', '.join(MODEL_KEYS)}")


_REWRITES: dict[str, Callable[[Tree, str], None]] = {
    "algo": _algorithm,
    "env": _env,
    "fabric": _fabric,
    "metric.aggregator": _aggregator,
}
