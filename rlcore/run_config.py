"""Construction and validation of the complete configuration of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS, Algorithm, refuse_unknown
from rlcore.compiled import when_to_compile
from rlcore.config.build import build
from rlcore.config.callbacks import changing_callbacks, may_log, read_callbacks
from rlcore.config.groups import REDUCTIONS
from rlcore.config.info_keys import metric_names
from rlcore.config.run import AlgorithmConfig, RunConfig
from rlcore.config.stop import (
    OLD_KEY,
    metrics_read,
    read_conditions,
    reads_evaluations,
    refuse_unknown_metrics,
    translate_early_stop,
)
from rlcore.config.values import spell
from rlcore.errors import Mistakes, UserError


def build_config(values: Mapping[str, Any], *, may_be_endless: bool = False) -> RunConfig:
    """Build and validate the configuration of a run from plain values, such as parsed YAML.

    Args:
        values: nested mappings, key -> value. `algo.name` is the algorithm, which determines the other keys of `algo`.
        may_be_endless: True to accept a config with neither `algo.total_steps` nor `stop`, for a program that ends the
            training itself or passes stop conditions to `Trainer.run`.

    Returns:
        The configuration.

    Raises:
        UserError: a key is unknown, or a value or a combination is invalid. The message lists all errors at once,
            except invalid combinations, which are checked only if there are no other errors.
    """
    plugins.load()
    plugins.require(values.get("plugins") or ())
    algo = values.get("algo")
    name = algo.get("name") if isinstance(algo, Mapping) else None
    if not isinstance(algo, Mapping) or name in (None, "???"):
        raise UserError(f"no algorithm chosen: select a preset, such as exp=ppo; algorithms: {', '.join(ALGORITHMS)}")
    refuse_unknown(spell(name))
    module, mistakes = ALGORITHMS[name], Mistakes()
    config: RunConfig | None = None
    keys = AlgorithmConfig(name=name, total_steps=1)  # used only if the group `algo` has errors, which are then raised
    own = {field.name for field in dataclasses.fields(RunConfig)}
    astray = [key for key in values if key not in own and key in _names(module)]
    for key in astray:  # configuration files of early SheepRL versions have these keys at the top level
        mistakes.note(UserError(f"{key}={spell(values[key])}: this key belongs to the algorithm; use algo.{key}"))
    owned = _find_foreign(name, algo)
    for key, owners in owned.items():
        others = ", ".join(owners)
        mistakes.note(UserError(f"algo.{key}={spell(algo[key])}: {name} has no such key; it is a key of {others}"))
    with mistakes.catch():
        keys = build(module.Config, {key: value for key, value in algo.items() if key not in owned}, "algo.")
    with mistakes.catch():
        values = translate_early_stop(values)
    with mistakes.catch():
        rest = {key: value for key, value in values.items() if key not in (*astray, OLD_KEY)}
        built: RunConfig = build(RunConfig, rest | {"algo": keys})
        config = dataclasses.replace(built, stop=read_conditions(built.stop), callbacks=read_callbacks(built.callbacks))
    mistakes.raise_collected()
    assert config is not None
    cross_check(config)
    if config.algo.total_steps is None and not (config.stop or config.callbacks or may_be_endless):
        raise UserError(
            "algo.total_steps=null: training would never end without a stop condition; set algo.total_steps, "
            "or a condition, as stop=[{upper_bound: {metric: Rewards/rew_avg, value: 475}}]"
        )
    return config


def _find_foreign(name: str, algo: Mapping[str, Any]) -> dict[str, list[str]]:
    """Find keys in `algo` that belong to other algorithms; return key -> names of these algorithms.

    `name` is the algorithm of the config. Keys that no algorithm has are not included.
    """
    own = _names(ALGORITHMS[name])
    strange = [key for key in algo if key not in own]  # usually empty; then the other algorithms are not imported
    owners = {key: [other for other, module in ALGORITHMS.items() if key in _names(module)] for key in strange}
    return {key: found for key, found in owners.items() if found}


def _names(module: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(module.Config)}


def cross_check(config: RunConfig) -> None:
    """Raise UserError if values of different keys are valid, but cannot be combined with each other."""
    config.algo.check_with(config)
    beyond = [e is not None and e > config.algo.step_limit for e in (config.checkpoint.every, config.evaluation.every)]
    if not config.checkpoint.save_last and all(beyond):
        raise UserError(
            f"checkpoint.save_last=false: checkpoint.every={config.checkpoint.every} and "
            f"evaluation.every={config.evaluation.every} are greater than algo.total_steps, so no checkpoint would be "
            "written; set checkpoint.save_last=true"
        )
    for key, value in (("root_dir", config.root_dir), ("run_name", config.run_name)):
        if ".." in PurePath(value).parts:
            raise UserError(f"{key}={value}: must not contain '..'; set log_root or run_dir to use another folder")
    if config.evaluation.film == "every" and not config.env.capture_video:
        raise UserError(
            "evaluation.film=every: has no effect without env.capture_video=true; set env.capture_video=true, or leave "
            "evaluation.film out"
        )
    unknown = [r for r in config.metric.aggregator.metrics.values() if r not in REDUCTIONS]
    if unknown:
        raise UserError(
            f"metric.aggregator.metrics: {unknown[0]!r} is not a reduction; each value must be one of "
            f"{', '.join(REDUCTIONS)}"
        )
    known = config.algo.metric_names()
    built_in = isinstance(ALGORITHMS.get(config.algo.name), Algorithm)  # a plugin's may be a subclass
    if known is not None and built_in:
        known = {*known, *metric_names(config.env.info_keys)}
        read = [read for read in metrics_read(config.stop) if not (config.callbacks and may_log(read[1]))]
        refuse_unknown_metrics(read, known, config.algo.name)
    readers = (key for key, metric in metrics_read(config.stop) if not reads_evaluations(metric))
    at_any_iteration = next(readers, "callbacks" if config.callbacks else None)
    if at_any_iteration is not None and not config.checkpoint.save_last:
        raise UserError(
            f"checkpoint.save_last=false: cannot be combined with {at_any_iteration}, which can end training at any "
            "iteration, so that the policy would not be saved; set checkpoint.save_last=true"
        )
    if config.fabric.ranks > 1 and (changing := changing_callbacks(config.callbacks)):
        raise UserError(
            f"callbacks=[{changing[0]['_target_']}]: changes training (changes_training = True), so it cannot run on "
            "several devices, because it is called on one of them only; set fabric.devices=1"
        )
    when_to_compile.check(config)
    resumed, extended = config.checkpoint.resume_from, config.checkpoint.extend_from
    if config.init_from and resumed:
        raise UserError(
            "init_from and checkpoint.resume_from cannot be combined; set init_from to start a new run from weights, "
            "or checkpoint.resume_from to resume a run"
        )
    if extended and (config.init_from or resumed):
        other = "init_from" if config.init_from else "checkpoint.resume_from"
        raise UserError(
            f"{other} and checkpoint.extend_from cannot be combined, because the state of the extended run includes "
            f"its weights; set {other}=null"
        )
