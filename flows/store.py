"""Creating run directories: the one place where a composed config becomes a folder, and where it is changed."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config import compose_existing, dump
from flows.lineage import code_version
from rlcore.durable import make_directory
from rlcore.errors import UserError
from rlcore.run.config import RunConfig, config_hash, config_of, learning_half
from rlcore.run.directory import RunDirectory, write_json, write_text
from rlcore.run.fingerprint import differences, may_extend
from rlcore.schema import spell

log = logging.getLogger(__name__)


def new_run(config: RunConfig, values: Mapping[str, Any], overrides: Sequence[str]) -> RunDirectory:
    """Check a composed config against the world, then make the folder of its run; a mistake leaves nothing behind.

    Args:
        config: as composed; `init_from` may be a models:/ URI.
        values: the same, as plain values.
        overrides: as typed.

    Returns:
        The run directory. Its config names what it starts from as a local folder; run.json has the URI too.

    Raises:
        UserError: there is a run already, or the config cannot run here.
    """
    _refuse_existing(config)
    config, values, source = prepared(config, values)
    return create_run(config, values, overrides, source)


def prepared(
    config: RunConfig, values: Mapping[str, Any]
) -> tuple[RunConfig, Mapping[str, Any], dict[str, Any] | None]:
    """Check a composed config against the world, and find what it starts from; nothing is written.

    Args:
        config: as composed; `init_from` may be a models:/ URI.
        values: the same, as plain values.

    Returns:
        Config and values with `init_from` as a local folder; what is kept of where it comes from, for `create_run`.

    Raises:
        UserError: the config cannot run here.
    """
    from flows.stages.make_env import check

    source = None
    if config.init_from:
        source, path = _source(config.init_from)
        config, values = dataclasses.replace(config, init_from=path), {**values, "init_from": path}
    check(config)
    return config, values, source


def _source(uri: str) -> tuple[dict[str, Any], str]:
    """What is kept of where weights come from, and the folder they lie in: an alias may point elsewhere tomorrow."""
    from flows.registry import resolve_uri
    from rlcore.run.checkpoint import chosen
    from rlcore.run.policy import load_policy

    registered = uri.startswith("models:/")
    try:
        path = str(resolve_uri(uri)) if registered else uri
        if RunDirectory(path).config.exists():
            # One checkpoint of it: tomorrow another one may be its best, and this run may have to start again.
            path = str(chosen(RunDirectory(path)).absolute())
        digest = load_policy(path).description["digest"]
    except UserError as error:
        raise UserError(f"init_from={uri}: {str(error).removeprefix(f'{uri}: ')}") from None
    return {"given": uri, "uri": uri if registered else None, "path": path, "digest": digest}, path


def create_run(
    config: RunConfig, values: Mapping[str, Any], overrides: Sequence[str], source: Mapping[str, Any] | None = None
) -> RunDirectory:
    """Make the folder of a new run with its config and identity. config.yaml comes last: with it the run is there.

    Args:
        config: the checked config.
        values: the same, composed and resolved, as plain values.
        overrides: as typed.
        source: given, uri, path and digest of the weights it starts from, for run.json.

    Returns:
        The run directory.

    Raises:
        UserError: there is a run already, or the folder cannot be made; names `run_dir`.
        RunError: the disk refused one of its files.
    """
    run = RunDirectory(Path(config.run_dir).absolute())
    try:
        make_directory(run.path)
        with run.writing():
            _refuse_existing(config)
            write_text(run.overrides, "".join(f"{o}\n" for o in overrides))
            make_directory(run.media)
            write_json(run.identity, _identity(config) | ({"init_from": dict(source)} if source else {}))
            write_text(run.config, dump(values))
    except OSError as error:
        raise UserError(f"run_dir={config.run_dir}: cannot be written ({error.strerror})") from error
    return run


def change_run(run: RunDirectory, overrides: Sequence[str]) -> None:
    """Set keys of a run anew that decide nothing it has learned so far.

    Args:
        run: not being trained at the moment.
        overrides: settings as typed.

    Raises:
        UserError: another process leads or writes the run; a setting is wrong, or would make it learn something else.
    """
    run.refuse_second_writer()
    with run.writing():
        before = config_of(run)
        config, values = compose_existing(run.config, overrides)
        _refuse_other_place(run, before, config)
        refuse_other_learning(run, before, config)
        if config.num_threads != before.num_threads:
            log.warning(
                "num_threads is %d, was %d: the run goes on, but not to the same bits",
                config.num_threads,
                before.num_threads,
            )
        typed = run.overrides.read_text() if run.overrides.exists() else ""
        write_text(run.overrides, typed + "".join(f"{override}\n" for override in overrides))
        _rewrite(run, values)


def rewrite_config(run: RunDirectory, values: Mapping[str, Any]) -> None:
    """Give a run another config that decides nothing it has learned so far (see `refuse_other_learning`).

    Args:
        run: not being trained at the moment.
        values: the composed and checked config as plain values.

    Raises:
        UserError: another process is writing the run.
    """
    with run.writing():
        _rewrite(run, values)


def _rewrite(run: RunDirectory, values: Mapping[str, Any]) -> None:
    summary = run.read_summary()
    if summary:
        # It ended under the old config: until the flow has come to its end again, nobody may call it finished.
        write_json(run.summary, summary | {"status": "training"})
    write_text(run.config, dump(values))


def _refuse_other_place(run: RunDirectory, before: RunConfig, config: RunConfig) -> None:
    """A begun run is where it is, and goes on from its own checkpoints: these keys would be noted and do nothing."""
    for key in ("run_dir", "root_dir", "log_root"):
        if getattr(config, key) != getattr(before, key):
            raise UserError(f"{key}={getattr(config, key)}: the run lies in {run.path}; move the folder instead")
    chosen = config.checkpoint.resume_from
    if chosen != before.checkpoint.resume_from:
        raise UserError(
            f"checkpoint.resume_from={spell(chosen)}: this run goes on from its own checkpoints; "
            f"give it to `shepherd train` with another run_dir"
        )


def refuse_other_learning(run: RunDirectory, before: RunConfig, config: RunConfig) -> None:
    """Refuse a config with which a run would learn something else than it has begun to.

    Args:
        run: whose.
        before: its config.
        config: the new one.

    Raises:
        UserError: names the key, both values and what to do.
    """
    extensible = may_extend(before, run.read_card()["tier"] if run.card.exists() else "")
    for key, old, new in differences(learning_half(before), learning_half(config)):
        if extensible and key == "algo.total_steps":
            continue
        annealed = ", ".join(f"algo.{name}" for name in before.algo.annealed) if key == "algo.total_steps" else ""
        why = f" ({annealed}: the coefficient falls until there)" if annealed else ""
        raise UserError(
            f"{key}={spell(new)}: this run learns with {key}={spell(old)}, and a resumed run learns what it would have "
            f"learned{why}; start a new run from its weights with init_from={run.path}"
        )


def _refuse_existing(config: RunConfig) -> None:
    if RunDirectory(config.run_dir).config.exists():
        raise UserError(
            f"run_dir={config.run_dir}: a run is there already; continue it with `shepherd resume {config.run_dir}` "
            "or choose another run_dir"
        )


def _identity(config: RunConfig) -> dict[str, Any]:
    return {
        "run_id": secrets.token_hex(8),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "algo": config.algo.name,
        "env_id": config.env.id,
        "seed": config.seed,
        "config_hash": config_hash(config),
        **code_version(),
    }
