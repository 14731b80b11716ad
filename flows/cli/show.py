"""`shepherd config`, `agents` and `envs`: what there is, printed; nothing is run, nothing is written."""

from __future__ import annotations

from collections.abc import Sequence


def config(overrides: Sequence[str], params: bool = False) -> str:
    """The composed config of these overrides as YAML, or the `params.yaml` of the DVC pipelines."""
    from flows.config.compose import compose, dump, params_yaml

    return dump(params_yaml(overrides) if params else compose(overrides)[1]).removesuffix("\n")


def agents() -> str:
    """The algorithms and what each can be trained on."""
    from flows.report.tables import agents_table
    from rlcore.algorithms import ALGORITHMS

    return agents_table(ALGORITHMS)


def envs() -> str:
    """The suites of environments, those of plugins among them, and which extra is missing."""
    from flows.report.tables import envs_table
    from rlcore.envs.make import load_plugins
    from rlcore.envs.suites.gym import suites

    load_plugins()
    return envs_table(suites())
