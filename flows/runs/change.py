"""Changes of an existing run's config: the keys that may change, and the errors for other keys."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flows.config.compose import compose_existing, dump
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json, write_text
from rlcore.train.resume import refuse_other_config

log = logging.getLogger(__name__)


def change_run(run: RunDirectory, overrides: Sequence[str]) -> None:
    """Change config keys of an existing run. Keys that affect the training that is already done cannot change.

    Raises a `UserError` if a value is invalid, if a key cannot change, or if another process is executing the run.
    """
    run.refuse_second_writer()
    with run.writing():
        stored = config_of(run)
        config, values = compose_existing(run.config, overrides)
        # A run resumes in its own folder from its own checkpoints, so these keys would have no effect.
        for key in ("run_dir", "root_dir", "log_root"):
            if getattr(config, key) != getattr(stored, key):
                raise UserError(
                    f"{key}={getattr(config, key)}: cannot change for an existing run; to move the run, move its "
                    f"folder {run.path}"
                )
        chosen = config.checkpoint.resume_from
        if chosen != stored.checkpoint.resume_from:
            raise UserError(
                f"checkpoint.resume_from={spell(chosen)}: this run resumes from its own checkpoints; "
                f"to start from another checkpoint, use `shepherd train` with a new run_dir"
            )
        refuse_other_config(run, stored, config)
        if config.num_threads != stored.num_threads:
            numbers = config.num_threads, stored.num_threads
            log.warning("num_threads is %d, was %d: the run continues, but not with the same bits", *numbers)
        typed = [*run.read_overrides(), *overrides]
        write_text(run.overrides, "".join(f"{override}\n" for override in typed))
        _rewrite(run, values)


def rewrite_config(run: RunDirectory, values: Mapping[str, Any]) -> None:
    """Replace the config of a run by a config that has been composed and checked.

    The caller must ensure that the new config does not affect the training that is already done.
    """
    with run.writing():
        _rewrite(run, values)


def _rewrite(run: RunDirectory, values: Mapping[str, Any]) -> None:
    if summary := run.read_summary():
        # The run ended with the old config. It counts as finished only when the flow has ended again.
        write_json(run.summary, summary | {"status": "training"})
    write_text(run.config, dump(values))
