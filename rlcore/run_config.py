"""The whole configuration of a run, checked: each group, the algorithm by its own class, then all together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS, refuse_unknown
from rlcore.compiled import when_to_compile
from rlcore.config.build import build
from rlcore.config.groups import REDUCTIONS, RunConfig
from rlcore.config.values import spell
from rlcore.errors import Mistakes, UserError


def build_config(values: Mapping[str, Any]) -> RunConfig:
    """The checked configuration of a run from plain values, as from YAML.

    `algo` becomes the `Config` of the algorithm that `algo.name` names. A `UserError` names an unknown key, a
    wrong type, an impossible value or combination; all of them are told at once.
    """
    plugins.load()
    plugins.require(values.get("plugins") or ())
    algo = values.get("algo")
    name = algo.get("name") if isinstance(algo, Mapping) else None
    if not isinstance(algo, Mapping) or name in (None, "???"):
        raise UserError(f"no algorithm chosen: name a preset, as exp=ppo; algorithms: {', '.join(ALGORITHMS)}")
    refuse_unknown(spell(name))
    module, mistakes = ALGORITHMS[name], Mistakes()
    config: Any = None
    keys: Any = None
    own = {field.name for field in dataclasses.fields(RunConfig)}
    astray = [key for key in values if key not in own and key in _names(module)]
    for key in astray:  # where files for an early SheepRL have them
        mistakes.note(UserError(f"{key}={spell(values[key])}: a key of the algorithm; write it as algo.{key}"))
    with mistakes.catch():
        config = build(RunConfig, {key: value for key, value in values.items() if key not in astray} | {"algo": None})
    owned = _find_foreign(name, algo)
    for key, owners in owned.items():
        mistakes.note(UserError(f"algo.{key}={spell(algo[key])}: a key of {', '.join(owners)}; {name} has no such key"))
    with mistakes.catch():
        keys = build(module.Config, {key: value for key, value in algo.items() if key not in owned}, "algo.")
    mistakes.tell()
    config = dataclasses.replace(config, algo=keys)
    cross_check(config)
    return config


def _find_foreign(name: str, algo: Mapping[str, Any]) -> dict[str, list[str]]:
    """Keys that the algorithm does not have and others here have, no slips of the pen: key -> whose."""
    own = _names(ALGORITHMS[name])
    strange = [key for key in algo if key not in own]  # seldom: others' keys take time to import
    owners = {key: [other for other, module in ALGORITHMS.items() if key in _names(module)] for key in strange}
    return {key: found for key, found in owners.items() if found}


def _names(module: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(module.Config)}


def cross_check(config: RunConfig) -> None:
    """Refuse combinations of keys that are impossible together, each of which is fine by itself."""
    config.algo.check_with(config)
    beyond = [e is not None and e > config.algo.total_steps for e in (config.checkpoint.every, config.evaluation.every)]
    if not config.checkpoint.save_last and all(beyond):
        raise UserError(
            f"checkpoint.save_last=false: checkpoint.every={config.checkpoint.every} and "
            f"evaluation.every={config.evaluation.every} lie beyond algo.total_steps, so no checkpoint would be written"
        )
    for key, value in (("root_dir", config.root_dir), ("run_name", config.run_name)):
        if ".." in PurePath(value).parts:
            raise UserError(f"{key}={value}: leads out of its folder; log_root or run_dir chooses another one")
    if config.evaluation.film == "every" and not config.env.capture_video:
        raise UserError(
            "evaluation.film=every: has no effect without env.capture_video=true; add that, or leave it out"
        )
    unknown = [r for r in config.metric.aggregator.metrics.values() if r not in REDUCTIONS]
    if unknown:
        raise UserError(f"metric.aggregator.metrics: {unknown[0]!r} must be one of {', '.join(REDUCTIONS)}")
    when_to_compile.check(config)
    if config.init_from and config.checkpoint.resume_from:
        raise UserError("init_from and checkpoint.resume_from: give one (new run from weights, or the same run again)")
