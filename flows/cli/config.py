"""Command `shepherd config`, which prints the composed config."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config.compose import compose, dump, params_yaml


def config(overrides: Sequence[str], params: bool = False) -> str:
    """Return the composed config of these overrides as YAML, or in the form of the DVC pipelines' `params.yaml`."""
    return dump(params_yaml(overrides) if params else compose(overrides)[1]).removesuffix("\n")
