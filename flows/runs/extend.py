"""Config of a run that extends another run: the config of that run, with a larger budget or other settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.config.compose import compose_extended
from flows.config.overrides import override_text
from flows.registry.origin import checkpoint_of
from flows.runs.create import new_run
from rlcore.config.learning_half import EXTENDS
from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory

# Values of keys that a new run does not inherit. The state of the extended run includes its initial weights. The group
# is left, because `shepherd compare` would count the seed twice.
NOT_INHERITED = {"run_name": "", "run_dir": "", "group": None, "init_from": None, "checkpoint.resume_from": None}


def extended_run(source: str, overrides: Sequence[str]) -> RunDirectory:
    """Create the directory of a run that extends another run. After an error, no file is left.

    Args:
        source: the run to extend (its newest checkpoint), one of its checkpoints, or a models:/ URI.
        overrides: `key=value` arguments that change keys of its config, such as `algo.total_steps=200000`, or choose
            a config file of the groups `logger` and `optim`.

    Returns:
        The run directory.

    Raises:
        UserError: If the run has no training state, or if this state does not fit the config.
    """
    composed, typed = compose_extension(source, overrides)
    return new_run(typed, composed=composed)


def compose_extension(source: str, overrides: Sequence[str]) -> tuple[tuple[RunConfig, dict[str, Any]], list[str]]:
    """Compose the config of a run that extends another run.

    Args:
        source: see `extended_run`.
        overrides: see `extended_run`.

    Returns:
        The config, as typed values and as nested dicts; and the overrides that are recorded for the run.
    """
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides}
    if EXTENDS in typed:
        raise UserError(
            f"{EXTENDS}: cannot be set by `shepherd extend`, because {source} is the run to extend; leave it out"
        )
    path = checkpoint_of(source) if source.startswith("models:/") else Path(source)
    if not path.exists() and path.parent.name == "checkpoints":
        # The error lists the existing checkpoints.
        path = checkpoint.resolve(RunDirectory.existing(path.parents[1]), path.name)
        source = str(path)
    is_checkpoint = (path / "manifest.json").exists()
    run = RunDirectory.of_checkpoint(path.absolute()) if is_checkpoint else RunDirectory.existing(path)
    ours = [override_text(key, value) for key, value in {EXTENDS: source, **NOT_INHERITED}.items() if key not in typed]
    _refuse_other_algorithm(run, overrides)
    return compose_extended(run, [*ours, *overrides]), [*run.read_overrides(), *ours, *overrides]


def _refuse_other_algorithm(run: RunDirectory, overrides: Sequence[str]) -> None:
    """Raise a UserError if an override changes `algo.name`; otherwise, the error would list every key of the run."""
    name = run.read_config()["algo"]["name"]
    for override in overrides:
        key, _, value = override.partition("=")
        if key in ("algo", "algo.name") and value != name:
            raise UserError(
                f"{override}: cannot differ from the algorithm of {run.path} ({name}), because its state does not fit; "
                f"to use another algorithm, train a new run"
            )
