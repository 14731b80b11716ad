"""What SheepRL's files name: classes, read as names from tables, and keys of algorithms that are not there yet.

SheepRL instantiates what `_target_` and `dense_act` name. Here such a string is looked up, and nothing is ever imported
because a config names it; what the table does not have is the user's mistake, told before any work. Keys that only the
named class would have read are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import REDUCTIONS, RunConfig
from rlcore.config.schema import REQUIRED, arguments, at, nearest, spell
from rlcore.errors import UserError

Tree = dict[str, Any]

OPTIMIZERS = {f"torch.optim.{name}": name.lower() for name in ("Adam", "AdamW", "RMSprop", "SGD")}
OPTIMIZERS |= {"sheeprl.optim.rmsprop_tf.RMSpropTF": "rmsprop_tf"}
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
# Places of class strings -> the classes there may be, with their names here if they have any, and the keys dropped.
CLASSES: dict[str, tuple[Collection[str], tuple[str, ...]]] = {
    "algo.optimizer": (OPTIMIZERS, ("fused", "foreach")),  # fused where torch has it; the mathematics is the same
    "env.wrapper": (("gymnasium.make", "gym.make"), ("id", "render_mode", "_convert_", "_recursive_")),  # or one's own
    "fabric": (("lightning.fabric.Fabric", "lightning.Fabric", "lightning_fabric.Fabric"), ()),
    "metric.aggregator": (
        ("sheeprl.utils.metric.MetricAggregator", "sheeprl.utils.metric.RankIndependentMetricAggregator"),
        (),
    ),
    "metric.logger": (LOGGERS, LOGGER_KEYS_DROPPED),
}
CALLBACKS = ("sheeprl.utils.callback.CheckpointCallback",)
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
# Families of SheepRL's algorithms -> their keys; what stands below a key is theirs too.
KEYS: dict[tuple[str, ...], str] = {
    ("sac", "droq", "sac_ae", "dreamer", "p2e"): """
        algo.replay_ratio algo.learning_starts algo.per_rank_pretrain_steps algo.per_rank_gradient_steps
        algo.cnn_keys.decoder algo.mlp_keys.decoder algo.actor.optimizer algo.critic.optimizer""",
    ("sac", "droq", "sac_ae"): """
        algo.tau algo.hidden_size algo.alpha algo.actor.hidden_size algo.critic.hidden_size algo.critic.n
        algo.critic.target_network_frequency buffer.sample_next_obs""",
    ("droq",): "algo.critic.dropout",
    ("sac_ae",): """
        algo.decoder algo.encoder.tau algo.encoder.features_dim algo.encoder.optimizer algo.actor.network_frequency""",
    ("sac_ae", "dreamer"): "algo.cnn_channels_multiplier algo.encoder.cnn_channels_multiplier",
    ("ppo_recurrent",): "algo.rnn algo.reset_recurrent_state_on_done algo.per_rank_num_batches",
    ("ppo_recurrent", "dreamer", "p2e"): "algo.per_rank_sequence_length",
    ("dreamer", "p2e"): """
        algo.world_model algo.horizon algo.lmbda algo.unimix algo.hafner_initialization algo.cnn_act algo.cnn_layer_norm
        algo.mlp_layer_norm algo.normalize_actions algo.replay_context algo.loss_scales algo.norm_eps algo.cnn_stages
        algo.cnn_kernel_size algo.player algo.train_every algo.optimizer.agc algo.optimizer.agc_pmin
        algo.optimizer.warmup algo.actor.cls algo.actor.ent_coef algo.actor.objective_mix algo.actor.min_std
        algo.actor.max_std algo.actor.init_std algo.actor.clip_gradients algo.actor.unimix algo.actor.action_clip
        algo.actor.moments algo.actor.outscale algo.actor.expl_amount algo.actor.expl_min algo.actor.expl_decay
        algo.actor.max_step_expl_decay algo.critic.tau algo.critic.bins algo.critic.clip_gradients algo.critic.outscale
        algo.critic.per_rank_target_network_update_freq algo.critic.slow_regularizer algo.critic.replay_loss
        algo.critic.replay_grad buffer.type buffer.prioritize_ends""",
    ("p2e",): """
        algo.ensembles algo.intrinsic_reward_multiplier algo.critics_exploration algo.actor_exploration
        algo.critic_exploration buffer.load_from_exploration checkpoint.exploration_ckpt_path""",
}


def refuse_other_algorithms(tree: Mapping[str, Any]) -> None:
    """Refuse keys of SheepRL's other algorithms in a resolved config: a `UserError` that says whose they are."""
    name = at(tree, "algo.name")
    if name not in ALGORITHMS:
        return  # that is told when the config is built
    own = [f"{argument.key}." for argument in (*arguments(RunConfig), *arguments(ALGORITHMS[name].Config, "algo."))]
    for families, key in ((families, key) for families, theirs in KEYS.items() for key in theirs.split()):
        value = at(tree, key, REQUIRED)
        while isinstance(value, Mapping) and value:  # the first key below it
            part, value = next(iter(value.items()))
            key = f"{key}.{part}"
        if value is not REQUIRED and not any(mine.startswith(f"{key}.") for mine in own):
            there = any(known.startswith(families) for known in ALGORITHMS)
            raise UserError(
                f"{key}={spell(value)}: SheepRL's key of {', '.join(families)}"
                f"{'' if there else ', not there yet'}; {name} has no such key"
            )


def name_classes(tree: Tree) -> None:
    """Replace every class string of a resolved config, in place, by its name here; others are a `UserError`."""
    for place, rewrite in _REWRITES.items():
        if isinstance(node := at(tree, place), dict):
            rewrite(node, place)
    for place, (table, dropped) in CLASSES.items():
        if isinstance(node := at(tree, place), dict) and not (place == "env.wrapper" and _is_own(node.get("_target_"))):
            if "_target_" in node:
                name = _look_up(f"{place}._target_", node.pop("_target_"), table)
                node |= {"name": name} if isinstance(table, Mapping) else {}
            for key in dropped:
                node.pop(key, None)
    if isinstance(tree.get("metric"), dict) and tree["metric"].get("logger", "") is None:
        tree["metric"]["logger"] = {"name": "none"}
    for key, value in _targets(tree):
        if key == "env.wrapper._target_":  # the user's own, with its arguments
            plugins.refuse_foreign(key, value)
            continue
        raise UserError(f"{key}={spell(value)}: no class can be named here, and none is imported; take the key out")


def _is_own(target: Any) -> bool:
    """Whether an environment's class, `package.Class`, may be one of the user's own; none of Gymnasium's is."""
    return isinstance(target, str) and re.fullmatch(r"(?!gym\.|gymnasium\.)\w+(\.\w+)+", target) is not None


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
    if isinstance(node.get("compile"), dict):
        node["compile"] = _compile(node["compile"], f"{place}.compile")
    if images := at(node, "cnn_keys.encoder"):
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


def _env(node: Tree, place: str) -> None:
    """`wrapper` as the arguments of gymnasium.make; its id must be the environment's."""
    wrapper = node.get("wrapper")
    if wrapper is None or wrapper == "???":
        node["wrapper"] = {}
    elif isinstance(wrapper, dict):
        target, own = wrapper.get("_target_"), node.get("id")
        if isinstance(target, str) and target in ENVS_NOT_YET:
            missing = f"{ENVS_NOT_YET[target]} is not there yet; `shepherd envs` lists what is"
            raise UserError(f"{place}.wrapper._target_={target}: {missing}")
        if wrapper.get("id", own) != own and not _is_own(target):
            raise UserError(
                f"{place}.wrapper.id={wrapper['id']}: differs from {place}.id={own}; "
                f"the environment is named by {place}.id alone"
            )


def _fabric(node: Tree, place: str) -> None:
    callbacks = node.pop("callbacks", None) or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        target = callback.get("_target_") if isinstance(callback, dict) else callback
        _look_up(f"{place}.callbacks._target_", target, CALLBACKS)
    if isinstance(node.get("precision"), int) and not isinstance(node["precision"], bool):
        node["precision"] = str(node["precision"])  # YAML reads `precision: 32` as a number


def _aggregator(node: Tree, place: str) -> None:
    if isinstance(metrics := node.get("metrics"), dict):
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
    "env": _env,
    "fabric": _fabric,
    "metric.aggregator": _aggregator,
    "model_manager.models": _models,
}
