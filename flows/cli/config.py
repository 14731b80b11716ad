"""`shepherd config`: the composed config, printed."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config.compose import compose, dump, params_yaml


def config(overrides: Sequence[str], params: bool = False) -> str:
    """The composed config of these overrides as YAML, or the `params.yaml` of the DVC pipelines."""
    return dump(params_yaml(overrides) if params else compose(overrides)[1]).removesuffix("\n")
