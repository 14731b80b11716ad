"""Another config for a run that is there: what may change, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flows.config.compose import compose_existing, dump
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json, write_text
from rlcore.train.resume_rules import refuse_other_config

log = logging.getLogger(__name__)


def change_run(run: RunDirectory, overrides: Sequence[str]) -> None:
    """Set keys of a run anew that decide nothing it has learned so far.

    A `UserError` where a setting is wrong or would make it learn something else, or another process leads the run.
    """
    run.refuse_second_writer()
    with run.writing():
        before = config_of(run)
        config, values = compose_existing(run.config, overrides)
        # A begun run is where it is, and goes on from its own checkpoints: these keys would be noted and do nothing.
        for key in ("run_dir", "root_dir", "log_root"):
            if getattr(config, key) != getattr(before, key):
                raise UserError(f"{key}={getattr(config, key)}: the run lies in {run.path}; move the folder instead")
        chosen = config.checkpoint.resume_from
        if chosen != before.checkpoint.resume_from:
            raise UserError(
                f"checkpoint.resume_from={spell(chosen)}: this run goes on from its own checkpoints; "
                f"give it to `shepherd train` with another run_dir"
            )
        refuse_other_config(run, before, config)
        if config.num_threads != before.num_threads:
            numbers = config.num_threads, before.num_threads
            log.warning("num_threads is %d, was %d: the run goes on, but not to the same bits", *numbers)
        typed = [*run.read_overrides(), *overrides]
        write_text(run.overrides, "".join(f"{override}\n" for override in typed))
        _rewrite(run, values)


def rewrite_config(run: RunDirectory, values: Mapping[str, Any]) -> None:
    """Give a run another composed and checked config, one that decides nothing it has learned so far."""
    with run.writing():
        _rewrite(run, values)


def _rewrite(run: RunDirectory, values: Mapping[str, Any]) -> None:
    if summary := run.read_summary():
        # It ended under the old config: until the flow has come to its end again, nobody may call it finished.
        write_json(run.summary, summary | {"status": "training"})
    write_text(run.config, dump(values))
