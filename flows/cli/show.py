"""`shepherd config`, `agents` and `envs`: what there is, printed; nothing is run, nothing is written."""

from __future__ import annotations

from collections.abc import Sequence


def config(overrides: Sequence[str], params: bool = False) -> str:
    """The composed config of these overrides as YAML, or the `params.yaml` of the DVC pipelines."""
    from flows.config.compose import compose, dump, params_yaml

    return dump(params_yaml(overrides) if params else compose(overrides)[1]).removesuffix("\n")


def agents() -> None:
    """Print the algorithms and what each can be trained on."""
    from flows.report.catalogue import agents_table
    from flows.report.terminal import show
    from rlcore.algorithms import ALGORITHMS

    show(agents_table(ALGORITHMS))


def envs() -> None:
    """Print the suites of environments, those of plugins among them, and which extra is missing."""
    from flows.report.catalogue import envs_table
    from flows.report.terminal import show
    from rlcore.envs.suites.gym import suites
    from rlcore.envs.suites.ids import load_plugins

    load_plugins()
    show(envs_table(suites()))
