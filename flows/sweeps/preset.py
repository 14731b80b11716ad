"""Preset file with the best configuration of a sweep.

If the file's config folder is in SHEPHERD_SEARCH_PATH, `exp=<sweep>_best` selects the preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from flows.config.compose import compose
from flows.config.overrides import parse
from flows.config.yaml_files import groups
from flows.report.command_lines import bin_folder, short_path
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.plan import merge
from flows.sweeps.space import to_overrides
from rlcore.config.values import at
from rlcore.store.directory import write_text


def best_preset(sweep: Sweep) -> None:
    """Write a preset file with the configuration of a sweep's best trial; do nothing if no trial was completed."""
    best = sweep.study.best()
    if best is None:
        return
    comment = (
        f"The best of {len(sweep.study.trials)} trials of sweep {sweep.folder.name}: trial {best.number}, "
        f"value {best.value:.6g}. {'It was not confirmed on new seeds.' if not sweep.config.confirm_seeds else ''}"
    )
    overrides = merge(sweep.plan.base, to_overrides(sweep.study.params(best.number)))
    write_text(sweep.folder.preset, preset(overrides, comment.strip()))


def preset(overrides: Sequence[str], comment: str) -> str:
    """Return the YAML text of a preset `P`, so that `exp=P` gives the same config as a list of overrides.

    Args:
        overrides: the overrides, which include `exp=`.
        comment: comment in the first line of the preset.

    Returns:
        The text.
    """
    taken_apart, (_, values) = parse(overrides, groups()), compose(overrides)
    chosen = dict(choice.lstrip("+").split("=", 1) for choice in taken_apart.choices)
    defaults = [chosen.pop("exp"), *({f"override /{group}": name} for group, name in chosen.items()), "_self_"]
    settings: dict[str, Any] = {}
    for setting in taken_apart.settings:
        *parts, last = setting.key_or_group.split(".")
        branch = settings
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[last] = at(values, setting.key_or_group)
    body = yaml.safe_dump({"defaults": defaults}, sort_keys=False) + "\n"
    body += yaml.safe_dump(settings, sort_keys=False, allow_unicode=True) if settings else ""
    return f"# @package _global_\n\n# {comment}\n{body}"


def train_command(folder: SweepFolder) -> str:
    """Return the `shepherd train` command that uses the preset with the best configuration of a sweep."""
    where = f"SHEPHERD_SEARCH_PATH={short_path(folder.conf)}"
    return f"{where} {bin_folder()}shepherd train exp={folder.preset.stem}"
