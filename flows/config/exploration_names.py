"""Conversion of the keys and metric names in SheepRL's config files that only Plan2Explore has."""

from __future__ import annotations

from typing import Any

from rlcore.algorithms import ALGORITHMS
from rlcore.config.values import at, spell
from rlcore.errors import UserError

Tree = dict[str, Any]

EXPLORATION = "exploration_ckpt_path"


def name_exploration_run(tree: Tree) -> None:
    """Replace SheepRL's keys for the exploration run of Plan2Explore by `init_from` and `buffer.load_from`.

    Args:
        tree: the config as nested dicts without interpolations; modified in place. The keys are replaced only if the
            algorithm is the fine-tuning phase.

    Raises:
        UserError: `init_from` or `buffer.load_from` names another source, or no exploration run is given to load.
    """
    module = ALGORITHMS.get(str(at(tree, "algo.name")))
    if module is None or not module.Config.fine_tunes:
        return
    run = at(tree, "checkpoint").pop(EXPLORATION, None)
    loads = at(tree, "buffer").pop("load_from_exploration", None)
    if run not in (None, "???") and tree.get("init_from") not in (None, run):
        raise UserError(
            f"checkpoint.{EXPLORATION}={spell(run)}: differs from init_from={spell(tree['init_from'])}; set one of them"
        )
    tree["init_from"] = tree.get("init_from") if run in (None, "???") else run
    if loads not in (None, False, True):
        raise UserError(f"buffer.load_from_exploration={spell(loads)}: must be true or false")
    if loads and str(tree["init_from"]).startswith("models:"):
        raise UserError(
            f"buffer.load_from_exploration=true: the registered model {tree['init_from']} has no replay buffer; set "
            f"checkpoint.{EXPLORATION} to the run, or leave it out"
        )
    if loads and at(tree, "buffer.load_from") not in (None, tree["init_from"]):
        other = spell(at(tree, "buffer.load_from"))
        raise UserError(f"buffer.load_from_exploration=true: differs from buffer.load_from={other}; set one of them")
    if loads:
        tree["buffer"]["load_from"] = tree["init_from"]


def name_exploration_metrics(tree: Tree) -> None:
    """Copy the reduction of a metric name without an ending to the metrics of each actor or critic, in place.

    SheepRL's files name some metrics of Plan2Explore without the ending of an actor or a critic. For example, with the
    two critics of the default, `Loss/value_loss_exploration: max` becomes `Loss/value_loss_exploration_intrinsic: max`
    and `Loss/value_loss_exploration_extrinsic: max`. A name with the ending has priority.

    Args:
        tree: the config as nested dicts without interpolations. Nothing is replaced if `algo` is invalid, or is not a
            phase of Plan2Explore.
    """
    algo, metrics = at(tree, "algo"), at(tree, "metric.aggregator.metrics")
    module = ALGORITHMS.get(str(at(algo, "name")))
    if module is None or not isinstance(metrics, dict) or not at(algo, "ensembles"):
        return
    # Only Plan2Explore needs this module, and every command imports this file.
    from rlcore.algorithms.dreamer.plan2explore.config import (
        OF_TASK,
        ONE_GOAL,
        PER_ACTOR,
        PER_CRITIC,
        exploration_metrics,
        goals_of,
    )

    logged = {*getattr(module.Config, "amount_metrics", ())}
    if hasattr(module.Config, "goals"):  # the exploration phase
        critics = at(algo, "critics_exploration")
        try:
            goals = goals_of(critics) if isinstance(critics, dict) else ONE_GOAL
        except UserError:  # raised again when the config is checked
            return
        logged |= exploration_metrics(PER_ACTOR | PER_CRITIC | OF_TASK, goals)
    for name in sorted(metrics.keys() - logged, key=len, reverse=True):  # the longest name first, which has priority
        if longer := [each for each in sorted(logged) if each.startswith(f"{name}_")]:
            value = metrics.pop(name)
            for each in longer:
                metrics.setdefault(each, value)
