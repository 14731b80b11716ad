"""Command `shepherd config`, which prints the composed config."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config.compose import compose, dump, params_yaml


def config(overrides: Sequence[str], params: bool = False) -> str:
    """Return the config that results from command-line overrides, as YAML.

    If `params` is True, the result has the form of the file `params.yaml` of a DVC pipeline: it keeps interpolations
    and omits the names of the run and of its folders.
    """
    return dump(params_yaml(overrides) if params else compose(overrides)[1]).removesuffix("\n")
