"""Command `shepherd config`, which prints the composed config."""

from __future__ import annotations

from collections.abc import Sequence

from flows.config.compose import compose, dump, params_yaml
from flows.config.run_file import with_file


def config(overrides: Sequence[str], params: bool = False, file: str = "") -> str:
    """Return the config that results from command-line overrides, as YAML.

    If `params` is True, the result has the form of the file `params.yaml` of a DVC pipeline: it keeps interpolations
    and omits the names of the run and of its folders. `file` is a file with settings; "" for none.
    """
    overrides = with_file(file, overrides)
    return dump(params_yaml(overrides) if params else compose(overrides)[1]).removesuffix("\n")
