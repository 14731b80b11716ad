"""The original run of a reproduction: its lineage, the new run directory, and what differs on this machine."""

from __future__ import annotations

import dataclasses
import json
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flows.config.compose import compose_existing
from flows.registry.origin import origin
from flows.runs.check import prepare
from flows.runs.create import create_run
from flows.runs.lineage import INPUTS, code_diff, code_version, hash_of_diff, place_inputs, whole_lineage
from rlcore.compiled.when_to_compile import decide, on_gpu
from rlcore.config.learning_half import EXTENDS, half_hash, learning_half
from rlcore.config.run import RunConfig
from rlcore.config.values import spell
from rlcore.errors import RunError, UserError
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import FORMAT, RunDirectory, write_json
from rlcore.store.run_files import describe_other_format, read_mapping
from rlcore.train import fingerprint
from rlcore.train.arithmetic import count

NOTE, VERDICT = "original.json", "reproduction.json"  # in the folder of a reproduction
UNREPORTED = ("code.dirty", "code.core_hash")  # `_of_code` reports them in words


class ReproductionMismatch(RunError):
    """Raised if a reproduction differs from the original run in a checkpoint, an evaluation or the dataset."""


@dataclass(frozen=True)
class Original:
    """Original run of a reproduction, to which it is compared; stored as original.json in the reproduction's folder.

    Attributes:
        source: the original as the user named it: a run directory or a models:/ URI.
        run_dir: run directory of the original; "" if it is not on this machine.
        until: policy steps of the last checkpoint that is compared.
        lineage: lineage of the original, from `flows.runs.lineage.whole_lineage`.
    """

    source: str
    run_dir: str
    until: int
    lineage: dict[str, Any]

    @staticmethod
    def of(again: RunDirectory) -> Original:
        """Load the description of the original run from the run directory of a reproduction."""
        stored = read_mapping(again.path / NOTE, "remove the folder and reproduce again", ("lineage", "source"))
        return Original(**stored)


def restore(source: str, run_dir: str = "") -> RunDirectory:
    """Create the reproduction of a run from the lineage of that run, or return an unfinished reproduction.

    Args:
        source: the original run: its run directory, or a registered model, models:/NAME@ALIAS or models:/NAME/VERSION.
        run_dir: run directory of the reproduction. If empty, it is `<name>_again` next to the run directory of the
            original. If that is not on this machine, it is next to the `run_dir` in the original's config.

    Returns:
        The run directory of the reproduction, with `original.json`.

    Raises:
        UserError: If the original has no checkpoint to compare with, or if the files from which it started (initial
            weights, checkpoint or dataset) are missing or have changed.
    """
    begun = RunDirectory(Path(run_dir).absolute())
    if run_dir and (begun.path / NOTE).exists() and Original.of(begun).source == source and not _is_ended(begun):
        return begun  # without a request to the registry, because the alias may have moved
    with tempfile.TemporaryDirectory() as downloads:
        original, folder = _find(source, Path(downloads))
        for path in _candidates(original, folder, run_dir):
            again = RunDirectory(path)
            if not again.config.exists():
                _make(original, folder, again)
            elif not _is_begun(original, again):
                if run_dir:
                    RunDirectory.new(run_dir)  # raises: the folder has another run
                continue
            write_json(again.path / NOTE, dataclasses.asdict(original))
            return again
    raise AssertionError("unreachable: _candidates never ends, or RunDirectory.new has raised")


def _find(source: str, downloads: Path) -> tuple[Original, Path]:
    """Return the original of a reproduction, and the folder that contains the original's config.yaml."""
    if source.startswith("models:/"):
        folder, digest = origin(source, downloads)
    else:
        folder, digest = RunDirectory.existing(source).path.absolute(), None
    run = RunDirectory(folder)
    local = run.identity.exists()
    lineage = _lineage_of(run) if local else _read_lineage(run)
    steps = [int(name) for name, of in lineage["checkpoints"].items() if digest in (None, of["digest"])]
    if not steps:
        raise UserError(
            f"{source}: its event log has no checkpoint, so there is nothing to compare; choose another run"
        )
    return Original(source, str(folder) if local else "", max(steps), lineage), folder


def _read_lineage(run: RunDirectory) -> dict[str, Any]:
    lineage = read_mapping(run.lineage, "give the folder of the run, not a copy of some of its files", ("checkpoints",))
    if lineage.get("format") != FORMAT:
        raise UserError(f"{run.lineage}: this lineage {describe_other_format(lineage.get('format'), FORMAT)}")
    return lineage


def _lineage_of(run: RunDirectory) -> dict[str, Any]:
    newest = checkpoint.newest_good(run.checkpoints)
    return whole_lineage(run, checkpoint.load(newest)[1]["fingerprint"] if newest else {})


def _candidates(original: Original, folder: Path, run_dir: str) -> Iterator[Path]:
    if run_dir:
        yield Path(run_dir).absolute()
        return
    values = RunDirectory(folder).read_config()
    first = Path(original.run_dir or values["run_dir"]).absolute()
    yield first.with_name(f"{first.name}_again")
    number = 2
    while True:
        yield first.with_name(f"{first.name}_again{number}")
        number += 1


def _is_begun(original: Original, again: RunDirectory) -> bool:
    """Return True if a run is an unfinished reproduction of the original."""
    return again.read_identity().get("reproduces") == original.lineage["run_id"] and not _is_ended(again)


def _is_ended(again: RunDirectory) -> bool:
    return (again.path / VERDICT).exists()


def _make(original: Original, folder: Path, again: RunDirectory) -> None:
    # The reproduction does not count as another run of the group.
    typed = [f"run_dir={json.dumps(str(again.path))}", f"run_name={json.dumps(again.path.name)}", "group=null"]
    config, values = compose_existing(folder / "config.yaml", typed)
    config, values, inputs = prepare(*_with_weights(config, values, original))
    for key, now in inputs.items():
        then = original.lineage.get(key)
        if then and then["digest"] != now["digest"]:
            raise UserError(
                f"{original.source}: it started from {INPUTS[key]}={then['path']} with digest {then['digest'][:16]}, "
                f"but the digest is now {now['digest'][:16]}; restore those files"
            )
    overrides = RunDirectory(folder).read_overrides()
    create_run(config, values, [*overrides, *typed], inputs, reproduces=original.lineage["run_id"])


def _with_weights(config: RunConfig, values: dict[str, Any], original: Original) -> tuple[RunConfig, dict[str, Any]]:
    """Set `init_from` to the registry URI of the initial weights if their local folder no longer exists."""
    then = original.lineage.get("init_from") or {}
    if not config.init_from or Path(config.init_from).exists() or not then.get("uri"):
        return config, values
    return place_inputs(config, values, {"init_from": then["uri"]})


def differences_here(again: RunDirectory) -> Iterator[str]:
    """Yield the differences between the original run and its reproduction on this machine, one line each.

    The config, code, library versions, device, threads, plugins and host are compared.
    """
    original = Original.of(again)
    then, config = original.lineage, config_of(again)
    yield from _of_config(then, config)
    if not then["machine"]:
        yield "no checkpoint of the original is left, so its machine and library versions are unknown"
        return
    compiled = decide(config, None, lambda: count(config, EnvSpec.from_json(again.read_card()["spec"])))
    code = code_version()
    now = fingerprint.machine(config, torch.device("cuda" if on_gpu(config) else "cpu"), compiled) | {"code": code}
    yield from _of_code(original, code)
    for key, before, here in fingerprint.differences(then["machine"], now):
        if key not in UNREPORTED and key != "code.commit":
            yield f"{key} is {here} here, was {before}"
    if then["compile"] != compiled:
        yield f"minibatch steps are computed {compiled} here, were {then['compile']} (algo.compile)"
    here = socket.gethostname()
    if then.get("host", here) != here:
        yield f"host is {here} here, was {then['host']}"


def _of_config(then: dict[str, Any], config: RunConfig) -> Iterator[str]:
    now, learned = learning_half(config), then.get("learned")
    if learned is None:
        if then.get("config_hash") not in (None, half_hash(now)):
            yield f"config.yaml has changed since the run was created; its hash was {then['config_hash'][:10]}"
        return
    for key, before, here in fingerprint.differences(learned, now):
        if key not in (
            "init_from",
            EXTENDS,
        ):  # the folder may be replaced by a registered version; the digests are compared instead
            yield f"config.yaml has {key}={spell(here)}, but the run was trained with {spell(before)}"


def _of_code(original: Original, code: dict[str, Any]) -> Iterator[str]:
    then, changes = original.lineage, []
    if then["commit"] != code["commit"]:
        changes.append(f"the commit is {code['commit'][:10]} here, was {then['commit'][:10]}")
    if then.get("code_diff") != hash_of_diff(code_diff()):
        changes.append("the uncommitted changes are different")
    if not changes:
        return
    same = then.get("core_hash") == code["core_hash"]
    yield f"{' and '.join(changes)}; the code of rlcore is {'identical' if same else 'different'}"
    if not same and then["commit"] != "unknown":
        patch = Path(original.run_dir, "code.diff")
        then_apply = f" && git apply {patch}" if then.get("code_diff") and patch.exists() else ""
        yield f"to restore that code: git checkout {then['commit'][:10]}{then_apply}"
