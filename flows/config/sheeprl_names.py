"""Class strings of SheepRL's files, read as names from tables. Nothing is ever imported because a config names it.

SheepRL instantiates what `_target_` and `dense_act` name. Here such a string is looked up; what the table does not
have is the user's mistake, told before any work. Keys that only the named class would have read are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rlcore.config.groups import REDUCTIONS
from rlcore.config.schema import at, nearest, spell
from rlcore.errors import UserError

Tree = dict[str, Any]

OPTIMIZERS = {
    "torch.optim.Adam": "adam",
    "torch.optim.AdamW": "adamw",
    "torch.optim.RMSprop": "rmsprop",
    "torch.optim.SGD": "sgd",
}
ACTIVATIONS = {
    "Tanh": "tanh",
    "ReLU": "relu",
    "ELU": "elu",
    "SiLU": "silu",
    "GELU": "gelu",
    "LeakyReLU": "leaky_relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Mish": "mish",
    "Identity": "identity",
}
METRICS = {f"torchmetrics.{name.title()}Metric": name for name in ("mean", "sum", "max", "min")}
LOGGERS = {
    "lightning.fabric.loggers.TensorBoardLogger": "tensorboard",
    "lightning.pytorch.loggers.TensorBoardLogger": "tensorboard",
    "lightning.fabric.loggers.CSVLogger": "csv",
    "lightning.pytorch.loggers.CSVLogger": "csv",
    "lightning.pytorch.loggers.MLFlowLogger": "mlflow",
}
# Where a run's files lie and what it is called is decided once, for all mirrors: run_dir, run_name, group.
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
FABRICS = ("lightning.fabric.Fabric", "lightning.Fabric", "lightning_fabric.Fabric")
CALLBACKS = ("sheeprl.utils.callback.CheckpointCallback",)
AGGREGATORS = ("sheeprl.utils.metric.MetricAggregator", "sheeprl.utils.metric.RankIndependentMetricAggregator")
ENV_MAKERS = ("gymnasium.make", "gym.make")
ENV_MAKER_KEYS_DROPPED = ("id", "render_mode", "_convert_", "_recursive_")
ENVS_NOT_YET = {
    "sheeprl.envs.dmc.DMCWrapper": "DeepMind Control",
    "sheeprl.envs.crafter.CrafterWrapper": "Crafter",
    "sheeprl.envs.diambra.DiambraWrapper": "DIAMBRA",
    "sheeprl.envs.minedojo.MineDojoWrapper": "MineDojo",
    "sheeprl.envs.minerl.MineRLWrapper": "MineRL",
    "sheeprl.envs.super_mario_bros.SuperMarioBrosWrapper": "Super Mario Bros",
    "gymnasium.wrappers.AtariPreprocessing": "Atari",
    "sheeprl.utils.env.get_dummy_env": "SheepRL's dummy environment",
}
MODEL_KEYS = ("model_name", "description", "tags")


def name_classes(tree: Tree) -> None:
    """Replace every class string of a resolved config by its name here.

    Args:
        tree: plain values, changed in place; no `_target_` is left.

    Raises:
        UserError: a string that no table has; the message names key, value and what is allowed.
    """
    for place, rewrite in _REWRITES.items():
        node = at(tree, place)
        if isinstance(node, dict):
            rewrite(node, place)
    if isinstance(tree.get("metric"), dict) and tree["metric"].get("logger", "") is None:
        tree["metric"]["logger"] = {"name": "none"}
    for key, value in _targets(tree):
        raise UserError(f"{key}={spell(value)}: no class can be named here, and none is imported; take the key out")


def _targets(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every `_target_` that is left anywhere, with its dotted key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key == "_target_":
            yield f"{prefix}{key}", item
        yield from _targets(item, f"{prefix}{key}.")


def _look_up(key: str, value: Any, table: Collection[str]) -> str:
    """What a table has for a class string; the string itself where the table only lists what is allowed."""
    if isinstance(value, str) and value in table:
        return table[value] if isinstance(table, Mapping) else value
    raise UserError(
        f"{key}={spell(value)}: not a name from the table, and nothing is imported because a config names it; "
        f"allowed: {', '.join(table)}{nearest(spell(value), table)}"
    )


def _algorithm(node: Tree, place: str) -> None:
    """Activations by name, compile as one value, and no image keys."""
    for part in (node, *(node.get(name) for name in ("encoder", "actor", "critic"))):
        if isinstance(part, dict) and isinstance(part.get("dense_act"), str):
            part["dense_act"] = _activation(part["dense_act"])
    compile_ = node.get("compile")
    if isinstance(compile_, dict):
        node["compile"] = _compile(compile_, f"{place}.compile")
    images = at(node, "cnn_keys.encoder")
    if images:
        raise UserError(
            f"{place}.cnn_keys.encoder={spell(images)}: image keys are not there yet; "
            f"leave the list empty and name vector keys in {place}.mlp_keys.encoder"
        )


def _activation(text: str) -> str:
    """`torch.nn.Tanh`, `torch.nn.modules.activation.Tanh` or `Tanh` as `tanh`; other text is left to the check."""
    module, _, name = text.rpartition(".")
    if module in ("", "torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear", "nn"):
        return ACTIVATIONS.get(name, text)
    return text


def _compile(node: Tree, key: str) -> Any:
    """SheepRL's mapping {enabled, mode, player} as one value; mode and player say how its compiler works."""
    for known in node:
        if known not in ("enabled", "mode", "player", "dynamic", "fullgraph"):
            hint = nearest(str(known), ("enabled", "mode", "player")) or f"; write {key}=auto, true or false"
            raise UserError(f"unknown key '{key}.{known}' (value {spell(node[known])!r}){hint}")
    return node.get("enabled", "auto")


def _optimizer(node: Tree, place: str) -> None:
    if "_target_" in node:
        node["name"] = _look_up(f"{place}._target_", node.pop("_target_"), OPTIMIZERS)
    for key in ("fused", "foreach"):  # the fused form is used where torch has one; the mathematics is the same
        node.pop(key, None)


def _env(node: Tree, place: str) -> None:
    """`wrapper` as the arguments of gymnasium.make; its id must be the environment's."""
    wrapper = node.get("wrapper")
    if wrapper is None or wrapper == "???":
        node["wrapper"] = {}
        return
    if not isinstance(wrapper, dict):
        return
    target, key = wrapper.pop("_target_", "gymnasium.make"), f"{place}.wrapper._target_"
    if isinstance(target, str) and target in ENVS_NOT_YET:
        raise UserError(f"{key}={target}: {ENVS_NOT_YET[target]} is not there yet; `shepherd envs` lists what is")
    _look_up(key, target, ENV_MAKERS)
    if wrapper.get("id", node.get("id")) != node.get("id"):
        raise UserError(
            f"{place}.wrapper.id={wrapper['id']}: differs from {place}.id={node.get('id')}; "
            f"the environment is named by {place}.id alone"
        )
    for name in ENV_MAKER_KEYS_DROPPED:
        wrapper.pop(name, None)


def _fabric(node: Tree, place: str) -> None:
    if "_target_" in node:
        _look_up(f"{place}._target_", node.pop("_target_"), FABRICS)
    callbacks = node.pop("callbacks", None) or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        target = callback.get("_target_") if isinstance(callback, dict) else callback
        _look_up(f"{place}.callbacks._target_", target, CALLBACKS)
    if isinstance(node.get("precision"), int) and not isinstance(node["precision"], bool):
        node["precision"] = str(node["precision"])  # YAML reads `precision: 32` as a number


def _aggregator(node: Tree, place: str) -> None:
    if "_target_" in node:
        _look_up(f"{place}._target_", node.pop("_target_"), AGGREGATORS)
    metrics = node.get("metrics")
    if isinstance(metrics, dict):
        node["metrics"] = {name: _reduction(value, f"{place}.metrics.{name}") for name, value in metrics.items()}


def _reduction(value: Any, key: str) -> str:
    """A reduction by name, or by the torchmetrics class that does it."""
    if isinstance(value, dict) and "_target_" in value:
        value, key = value["_target_"], f"{key}._target_"
    table = {name: name for name in REDUCTIONS} | METRICS
    name = str(value).replace("torchmetrics.aggregation.", "torchmetrics.")
    if name in table:
        return table[name]
    raise UserError(f"{key}={spell(value)}: must be one of {', '.join(table)}{nearest(spell(value), table)}")


def _logger(node: Tree, place: str) -> None:
    if "_target_" in node:
        # There `name` is the name of the run's folder; the logger is named by its class.
        node["name"] = _look_up(f"{place}._target_", node.pop("_target_"), LOGGERS)
    for key in LOGGER_KEYS_DROPPED:
        node.pop(key, None)


def _models(node: Tree, place: str) -> None:
    for name, model in node.items():
        if name != "agent":
            raise UserError(f"unknown key '{place}.{name}' (value {spell(model)!r}): the registered model is 'agent'")
        for key in model if isinstance(model, dict) else ():
            if key not in MODEL_KEYS:
                hint = nearest(str(key), MODEL_KEYS) or f"; known here: {', '.join(MODEL_KEYS)}"
                raise UserError(f"unknown key '{place}.{name}.{key}' (value {spell(model[key])!r}){hint}")
        if not isinstance(model, dict):
            raise UserError(f"{place}.{name}={spell(model)}: must be a mapping of {', '.join(MODEL_KEYS)}")


_REWRITES: dict[str, Callable[[Tree, str], None]] = {
    "algo": _algorithm,
    "algo.optimizer": _optimizer,
    "env": _env,
    "fabric": _fabric,
    "metric.aggregator": _aggregator,
    "metric.logger": _logger,
    "model_manager.models": _models,
}
