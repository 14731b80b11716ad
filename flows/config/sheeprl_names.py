"""Conversion of class names in SheepRL's config files to the names of this project.

SheepRL imports and instantiates the classes named by `_target_` and `dense_act`. Here such a string is looked up in a
table, and no config causes an import. A string that is not in the table is an error. Keys that only configure the named
class in SheepRL are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import REDUCTIONS
from rlcore.config.schema import arguments, groups
from rlcore.config.values import at, nearest, spell
from rlcore.errors import Mistakes, NotSupported, UserError
from rlcore.nn.network_keys import ACTIVATIONS as NAMED_ACTIVATIONS
from rlcore.optim.optimizer_keys import OptimizerConfig

if TYPE_CHECKING:
    from omegaconf import DictConfig

Tree = dict[str, Any]

OPTIMIZERS = {f"torch.optim.{name}": name.lower() for name in ("Adam", "AdamW", "RMSprop", "SGD")}
OPTIMIZERS |= {"sheeprl.optim.rmsprop_tf.RMSpropTF": "rmsprop_tf"}
OPTIMIZERS |= {"sheeprl.algos.dreamer_v3_5.optim.LaProp": "laprop"}
_ACTIVATIONS = ("Tanh", "ReLU", "ELU", "SiLU", "GELU", "Sigmoid", "Softplus", "Mish", "Identity")
ACTIVATIONS = {name: name.lower() for name in _ACTIVATIONS} | {"LeakyReLU": "leaky_relu"}
METRICS = {f"torchmetrics.{name.title()}Metric": name for name in ("mean", "sum", "max", "min")}
LOGGERS = {
    "lightning.fabric.loggers.TensorBoardLogger": "tensorboard",
    "lightning.pytorch.loggers.TensorBoardLogger": "tensorboard",
    "lightning.fabric.loggers.CSVLogger": "csv",
    "lightning.pytorch.loggers.CSVLogger": "csv",
    "lightning.pytorch.loggers.MLFlowLogger": "mlflow",
}
# Not supported per logger: run_dir, run_name and group set the folder and the name for all loggers.
LOGGER_KEYS_DROPPED = (
    "root_dir",
    "save_dir",
    "version",
    "default_hp_metric",
    "prefix",
    "sub_dir",
    "flush_logs_every_n_steps",
    "run_name",
    "run_id",
    "artifact_location",
    "log_model",
)
# Keys of class strings -> (allowed classes, with our names if there are any; keys that are removed).
CLASSES: dict[str, tuple[Collection[str], tuple[str, ...]]] = {
    "env.wrapper": (
        ("gymnasium.make", "gym.make"),
        ("id", "render_mode", "_convert_", "_recursive_"),
    ),  # or a class of the user
    "fabric": (("lightning.fabric.Fabric", "lightning.Fabric", "lightning_fabric.Fabric"), ()),
    "metric.aggregator": (
        ("sheeprl.utils.metric.MetricAggregator", "sheeprl.utils.metric.RankIndependentMetricAggregator"),
        (),
    ),
    "metric.logger": (LOGGERS, LOGGER_KEYS_DROPPED),
}
CALLBACKS = ("sheeprl.utils.callback.CheckpointCallback",)
# Groups that have this class in every config of SheepRL and need no class here.
ALWAYS = {"fabric": "lightning.fabric.Fabric", "metric.aggregator": "sheeprl.utils.metric.MetricAggregator"}
ENVS_NOT_YET = {
    "sheeprl.envs.minedojo.MineDojoWrapper": "MineDojo",
    "sheeprl.envs.minerl.MineRLWrapper": "MineRL",
    "sheeprl.envs.super_mario_bros.SuperMarioBrosWrapper": "Super Mario Bros",
}
SHEEPRL_RESTARTS = 2  # within 300 s, as in SheepRL's Dreamers
ACTORS = {"Actor": "actor", "MinedojoActor": "masked_actor"}
NETWORKS = {f"sheeprl.models.models.{name}": "layer_norm" for name in ("LayerNorm", "LayerNormChannelLast")}
NETWORKS |= {"torch.nn.LayerNorm": "layer_norm", "torch.nn.Identity": "identity"}
for version in ("dreamer_v1", "dreamer_v2", "dreamer_v3"):
    NETWORKS |= {f"sheeprl.algos.{version}.agent.{name}": own for name, own in ACTORS.items()}
# Models that SheepRL registers separately; models not in `exported_components` are part of the agent.
PARTS = ("world_model", "actor", "critic", "target_critic", "moments", "encoder", "decoder")
MODEL_KEYS = ("model_name", "description", "tags")


def name_classes(tree: Tree) -> None:
    """Replace the class strings in a config, such as `torch.optim.Adam`, by names of this project, such as `adam`.

    Args:
        tree: the config as nested dicts without interpolations; modified in place.

    Raises:
        UserError: the config contains class strings that are not allowed; the message lists all of them.
    """
    mistakes = Mistakes()
    for place, rewrite in _REWRITES.items():
        if isinstance(node := at(tree, place), dict):
            with mistakes.catch():
                rewrite(node, place)
    if isinstance(node := at(tree, "model_manager.models"), dict):
        with mistakes.catch():
            _models(node, "model_manager.models", ALGORITHMS.get(str(at(tree, "algo.name"))))
    for place, (table, dropped) in (CLASSES | _optimizers(tree)).items():
        if isinstance(node := at(tree, place), dict) and not (place == "env.wrapper" and _is_own(node.get("_target_"))):
            if (target := node.pop("_target_", None)) is not None:
                with mistakes.catch():
                    name = _look_up(f"{place}._target_", target, table)
                    node |= {"name": name} if isinstance(table, Mapping) else {}
            for key in dropped:
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
            value = spell(node.pop("_target_"))
            raise UserError(f"{key}={value}: this key accepts no class; {_instead_of_class(key)}")
    mistakes.raise_collected()


def _instead_of_class(key: str) -> str:
    """Return advice for a user who has set a key to a class although the key accepts no class."""
    if key.startswith("env.wrapper."):
        return (
            "write a class or function that creates the whole environment, and set env.wrapper._target_ to it "
            "(docs/your_own_environment.md)"
        )
    if key.startswith("algo."):
        return "for your own networks and losses, write your own algorithm (docs/your_own_algorithm.md)"
    return f"`shepherd train -h {key.partition('.')[0]}` lists the allowed keys and values"


def add_class_names(config: DictConfig) -> None:
    """Add the `_target_` keys of SheepRL's configs to a composed config, in place.

    Each added value is an interpolation of the key of this project that selects the class: `env.id` for the
    environment, `name` for an optimizer or a logger. The value therefore stays correct if a script changes that key.
    """
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("sheeprl_class"):
        OmegaConf.register_new_resolver("sheeprl_class", _class_of)
    tree: Any = OmegaConf.to_container(config, resolve=False)
    added: dict[str, Tree] = {place: {"_target_": target} for place, target in ALWAYS.items()}
    added["fabric"]["callbacks"] = [{"_target_": CALLBACKS[0], "keep_last": "${checkpoint.keep_last}"}]
    added["env.wrapper"] = {"_target_": "${sheeprl_class:env,${env.id}}", "id": "${env.id}"}
    for place in _optimizers(tree):
        added[place] = {"_target_": "${sheeprl_class:optimizer,${.name}}"}
        if (named := OPTIMIZERS.get(str(at(tree, f"{place}._target_")))) is not None:
            OmegaConf.update(config, place, {"name": named, **added[place]})
    added["metric.logger"] = {"_target_": "${sheeprl_class:logger,${.name}}"}
    for place, keys in added.items():
        node = OmegaConf.select(config, place, throw_on_missing=False)
        if OmegaConf.is_dict(node) and "_target_" not in node:
            node.merge_with({key: value for key, value in keys.items() if key not in node})


def _class_of(kind: str, name: str) -> str | None:
    """Return the class or function that specifies an environment, optimizer or logger in SheepRL's files.

    Args:
        kind: "env", "optimizer" or "logger".
        name: environment id, or the name of the optimizer or logger in this project.

    Returns:
        The dotted name of the class or function; None for an optimizer or logger that SheepRL does not have.
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
    places = CLASSES | _optimizers({"algo": {"name": algorithm}})
    group, _, last = key.rpartition(".")
    return last == "name" and isinstance(places.get(group, ((),))[0], Mapping)


def _optimizers(tree: Tree) -> dict[str, tuple[Collection[str], tuple[str, ...]]]:
    """Return the optimizers in the algorithm's config: dotted key -> (allowed classes, keys that are removed).

    `CLASSES` contains such entries for groups of keys that do not depend on the algorithm.
    """
    module = ALGORITHMS.get(str(at(tree, "algo.name")))
    places = groups(module.Config, OptimizerConfig, "algo.") if module else ("algo.optimizer",)
    return dict.fromkeys(places, (OPTIMIZERS, ("fused", "foreach")))  # these keys affect only torch's speed


def _is_own(target: Any) -> bool:
    """Return True if a value is a dotted name that does not belong to Gymnasium.

    It may then be an environment class or function of the user.
    """
    return isinstance(target, str) and re.fullmatch(r"(?!gym\.|gymnasium\.)\w+(\.\w+)+", target) is not None


def _targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Tree]]:
    """Yield the dotted key of each `_target_` in a config, and the mapping that contains the `_target_`."""
    if isinstance(value, dict) and "_target_" in value:
        yield f"{prefix}_target_", value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _targets(item, f"{prefix}{key}.")


def _look_up(key: str, value: Any, table: Collection[str]) -> str:
    """Return the name for a class string in a table; raise UserError if the table does not contain the string.

    If the table has no names, but is only a list of allowed strings, return the class string.
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
    if "world_model" in node:
        node.pop("player", None)  # its only key repeats a key of the world model
    module = ALGORITHMS.get(str(node.get("name")))
    for argument in arguments(module.Config) if module else ():
        group, _, last = argument.key.rpartition(".")
        part = at(node, group) if group else node
        if argument.choices == tuple(NAMED_ACTIVATIONS) and isinstance(part, dict) and isinstance(part.get(last), str):
            part[last] = _activation(part[last])
        if last == "cls" and isinstance(part, dict) and part.get(last) in NETWORKS:
            part[last] = NETWORKS[part[last]]
    if isinstance(node.get("compile"), dict):
        node["compile"] = _compile(node.pop("compile"), f"{place}.compile")


def _activation(text: str) -> str:
    """Convert `torch.nn.Tanh`, `torch.nn.modules.activation.Tanh` or `Tanh` to `tanh`; return other text unchanged."""
    module, _, name = text.rpartition(".")
    if module in ("", "torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear", "nn"):
        return ACTIVATIONS.get(name, text)
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
        if theirs and theirs not in CLASSES["env.wrapper"][0]:
            _refuse_other_suite(theirs, str(own), place)
        if isinstance(target, str) and target in ENVS_NOT_YET:
            missing = f"{ENVS_NOT_YET[wrapper.pop('_target_')]} is not supported yet; `shepherd envs` lists the suites"
            raise NotSupported(f"{place}.wrapper._target_={target}: {missing}")
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
    dropped = ("_target_", *CLASSES["env.wrapper"][1])
    wrapper |= {key: value for key, value in inner.items() if key not in dropped and key not in wrapper}


def _dmc_id(env_id: Any, wrapper: Tree) -> Any:
    """Return the environment id of the DeepMind Control (DMC) task that `wrapper` names.

    If `env_id` is already the id of a DMC task, return `env_id`.
    """
    from rlcore.envs.suites.dmc import DMCSuite  # imports gymnasium

    named = f"{wrapper['domain_name']}_{wrapper.get('task_name')}"
    return env_id if str(env_id) in DMCSuite().ids() else named


def _means_suite(target: str) -> bool:
    """Return True if SheepRL's files use this class or function to create environments of a supported suite.

    The class is not imported.
    """
    return target in CLASSES["env.wrapper"][0] or target in _targets_of_suites()


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
        _look_up(f"{place}.callbacks._target_", target, CALLBACKS)
    if isinstance(node.get("precision"), int) and not isinstance(node["precision"], bool):
        node["precision"] = str(node["precision"])  # YAML reads `precision: 32` as a number


def _aggregator(node: Tree, place: str) -> None:
    if isinstance(node.get("metrics"), dict):
        metrics = node.pop("metrics").items()
        node["metrics"] = {name: _reduction(value, f"{place}.metrics.{name}") for name, value in metrics}


def _reduction(value: Any, key: str) -> str:
    """Return the name of a metric's reduction, such as "mean".

    `value` is this name or a class of torchmetrics, such as `torchmetrics.MeanMetric`.
    """
    if isinstance(value, dict) and "_target_" in value:
        value, key = value["_target_"], f"{key}._target_"
    table = {name: name for name in REDUCTIONS} | METRICS
    name = str(value).replace("torchmetrics.aggregation.", "torchmetrics.")
    if name in table:
        return table[name]
    raise UserError(f"{key}={spell(value)}: must be one of {', '.join(table)}{nearest(spell(value), table)}")


def _models(node: Tree, place: str, algorithm: Any) -> None:
    """Check the keys of `model_manager.models`, which defines the models that a run registers.

    Allowed keys are `agent` and the components that the algorithm exports. Components that SheepRL registers and this
    project does not are removed. Raises UserError for other keys.
    """
    known = ("agent", *(algorithm.Config.exported_components if algorithm else ()))
    for name in PARTS:
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
