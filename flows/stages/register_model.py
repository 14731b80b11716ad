"""register-model: register a run's checkpoint as a servable model version, and decide on the champion."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import champions, upload
from flows.registry import models as registry
from flows.registry.contest import against_champion, against_random, play_candidate
from flows.registry.gate import EPISODES, GateVerdict
from flows.report.sentences import number
from flows.runs.lineage import lineage
from flows.runs.listeners import announce, emit
from flows.runs.milestones import is_registered
from flows.runs.series import write_model
from flows.runs.with_torch import with_torch
from flows.stages.summary import summarise
from flows.tracking.backends import update_backends
from flows.tracking.mlflow_run import store_of
from flows.tracking.mlflow_store import connect, locks_in_a_sentence
from flows.tracking.tags import prefixed, tag_value
from rlcore.config.values import spell
from rlcore.store.checkpoint import choose, manifest
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog
from rlcore.store.history import history
from rlcore.system.secrets import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

UNDECIDED = "undecided"  # tag with the value "true" if the comparison timed out without a decision


def register_model(run: RunDirectory) -> dict[str, Any]:
    """Register a run's policy as a model version and decide whether that version becomes the champion of its model.

    The policy is the best checkpoint by greedy evaluation, or the latest one if there is no evaluation. Returns name,
    version, aliases, and the decision as text. Name and version are None for a dry run and if the registry is disabled.
    If the checkpoint is already registered, its existing version is used. If an earlier call was interrupted, this call
    completes the registration.
    """
    config = config_of(run)
    # A dry run has learned nothing, but as the first version it could become the champion.
    switches = {"dry_run": config.dry_run, "model_manager.disabled": config.model_manager.disabled}
    if off := next((key for key, on in switches.items() if on), None):
        result = {"name": None, "version": None, "aliases": [], "decision": f"not registered: {off}=true"}
        write_model(run, result)  # DVC requires the file
        emit("registered", result)
        return result
    unfinished = "training has finished, but the model is not registered yet"
    with locks_in_a_sentence(store_of(run), unfinished), announce("registering the model in MLflow"):
        return _register(run, registry.model_name(config))


def _register(run: RunDirectory, name: str) -> dict[str, Any]:
    checkpoint = choose(run)
    digest, mlflow_run = manifest(checkpoint)["digest"], update_backends(run)
    client = connect(store_of(run))
    with registry.deciding(client.tracking_uri):
        version = registry.version_of_checkpoint(client, name, digest)
        version = version or _create_version(client, name, run, checkpoint, mlflow_run)
        upload.delete_leftovers(client, mlflow_run, digest)
        decision = _decision(version)
        if decision is None:
            upload.link_logged_model(client, version)
            client.set_registered_model_alias(name, "challenger", version.version)
        parts = _register_parts(client, run, checkpoint, version)
    decision = decision or _decide(client, run, checkpoint, version)
    aliases = sorted(client.get_model_version(name, version.version).aliases)
    if version.run_id != mlflow_run:
        first = tag_value(version.tags, "run_dir") or version.run_id
        decision = f"{decision} (no new version, because {first} has the same weights)"
    event = {"name": name, "version": int(version.version), "aliases": aliases} | ({"parts": parts} if parts else {})
    logged = history(run.events).last("registered")
    if logged is None or not event.items() <= logged.items() or not is_registered(run):
        EventLog(run.events).append("registered", **event)
    summarise(run)  # without the learning curve, which registration does not change
    result = {**event, "decision": decision}
    write_model(run, result)
    emit("registered", result)
    return result


def _create_version(
    client: MlflowClient, name: str, run: RunDirectory, checkpoint: Path, mlflow_run: str
) -> ModelVersion:
    """Register the policy of a checkpoint as a new version."""
    config, tags = config_of(run), _tags(run, checkpoint, registry.AGENT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        facts = with_torch(run, "flows.registry.playing.write_policy", str(checkpoint), str(path))
        policy = upload.PolicyFolder.from_json(path, facts)
        return upload.create_version(client, name, policy, mlflow_run, tags, registry.description_of(config))


def _tags(run: RunDirectory, checkpoint: Path, part: str) -> dict[str, str]:
    """Return the origin of a version as tags, in the order in which MLflow shows them."""
    config, facts = config_of(run), manifest(checkpoint)
    chosen_tags = registry.model_settings(config, part).get("tags") or {}
    tags = {key: redact(spell(value)) for key, value in chosen_tags.items()}
    tags |= {"policy_steps": str(facts["policy_steps"]), "seed": str(config.seed)}
    origin = {key: spell(value) for key, value in lineage(run).items()}
    origin |= {"checkpoint_digest": facts["digest"], "checkpoint": checkpoint.relative_to(run.path).as_posix()}
    return tags | prefixed(origin | {"run_dir": str(run.path.absolute())})


def _register_parts(
    client: MlflowClient, run: RunDirectory, checkpoint: Path, policy: ModelVersion
) -> dict[str, dict[str, Any]]:
    """Register components of the learner as separate models, if the config lists any.

    Return component -> {name, version}. These versions get no aliases. Their tag `policy` names the version of the
    policy to which they belong.
    """
    config, digest, versions = config_of(run), manifest(checkpoint)["digest"], dict[str, dict[str, Any]]()
    names = {part: registry.model_name(config, part) for part in registry.parts_of(config)}
    existing = {part: registry.version_of_checkpoint(client, name, digest) for part, name in names.items()}
    missing = [part for part, version in existing.items() if version is None]
    with tempfile.TemporaryDirectory() as folder:
        if missing:
            with_torch(run, "flows.registry.playing.export_parts", str(checkpoint), missing, folder)
        for part, name in names.items():
            version, tags = existing[part], {"part": part, "policy": f"{policy.name} version {policy.version}"}
            version = version or upload.create_part_version(
                client,
                name,
                part,
                Path(folder) / part,
                str(policy.run_id),
                tags | _tags(run, checkpoint, part),
                registry.description_of(config, part),
            )
            upload.link_logged_model(client, version)
            versions[part] = {"name": name, "version": int(version.version)}
    return versions


def _decision(version: ModelVersion) -> str | None:
    """Return the decision whether a version becomes champion, as text; None if it is not decided yet.

    A decision after a comparison that timed out is not final, so None is returned.
    """
    return None if version.tags.get(UNDECIDED) == "true" else version.tags.get("decision")


def _decide(client: MlflowClient, run: RunDirectory, checkpoint: Path, version: ModelVersion) -> str:
    """Compare a version with the champion of its model, and return the decision as text.

    Results and reasons are stored as tags of the version, and its alias is set. While the episodes of the comparison
    are played, other processes may register versions, promote them, or restore an earlier champion. If another version
    is champion when the comparison ends, the version is compared with that one as well.
    """
    name, this = version.name, str(version.version)
    while True:
        champion = registry.champion_of(client, name)
        if champion is None:
            other, (result, verdict) = "random baseline", _against_baseline(run, checkpoint)
        elif str(champion.version) != this:
            other = f"version {champion.version}"
            result, verdict = against_champion(client, run, checkpoint, version, champion, with_torch)
        else:  # the previous call was killed after it had set the alias
            other, result, verdict = "", {}, ""
        with registry.deciding(client.tracking_uri):
            if decision := _decision(client.get_model_version(name, this)):  # another process has decided
                return decision
            present = registry.champion_of(client, name)
            if (present and present.version) == (champion and champion.version):
                if champion is not None and str(champion.version) == this:
                    return _note(client, name, this, _reason_of(client, name, this))
                return _write(client, run, version, result, verdict, other)


def _reason_of(client: MlflowClient, name: str, this: str) -> str:
    """Return the reason why a version with the champion alias became the champion."""
    moves = reversed(champions.history(client, name))
    decision = next((move.why for move in moves if move.version == this), "")
    return decision or f"Champion: version {this} already had the alias"


def _write(
    client: MlflowClient,
    run: RunDirectory,
    version: ModelVersion,
    result: Mapping[str, Any],
    verdict: GateVerdict | str,
    other: str,
) -> str:
    """Write the result of a comparison to the version, make it champion if it is better, and return the decision."""
    name, this = version.name, str(version.version)
    figures: dict[str, Any] = {"eval_mean": result["mean"], "eval_episodes": result["episodes"]} if result else {}
    if isinstance(verdict, GateVerdict):
        decision = f"{'Champion' if verdict.better else 'Not champion'}: {verdict.words}"
        if math.isfinite(verdict.low):  # a single episode gives no interval
            figures |= {"difference": verdict.difference, "difference_low": verdict.low}
            figures |= {"difference_high": verdict.high}
        figures |= {"compared_with": other, UNDECIDED: "false" if verdict.decided else "true"}
    else:
        decision = f"Not champion: not compared, because {verdict}"
    for key, value in figures.items():
        client.set_model_version_tag(name, this, key, f"{value:.6g}" if isinstance(value, float) else str(value))
    # MLflow's list of versions shows only the first words, so they contain the decision.
    played = f" Greedy mean return {number(result['mean'])} over {result['episodes']} episodes." if result else ""
    client.update_model_version(name, this, f"{decision}.{played}\n\n{registry.description_of(config_of(run))}")
    if isinstance(verdict, GateVerdict) and verdict.better:
        champions.set_champion(client, name, this, "gate", decision)
    return _note(client, name, this, decision)


def _note(client: MlflowClient, name: str, this: str, decision: str) -> str:
    client.set_model_version_tag(name, this, "decision", decision)  # later calls do not decide again
    return decision


def _against_baseline(run: RunDirectory, checkpoint: Path) -> tuple[dict[str, Any], GateVerdict | str]:
    """Compare a checkpoint with the random policy; return the checkpoint's results and the verdict.

    If the two cannot be compared, the reason is returned as text in place of the verdict.
    """
    log = history(run.events)
    baseline, final = log.last("baseline"), log.last("evaluation", final=True)
    here = checkpoint.relative_to(run.path).as_posix()
    if final is not None and final.get("checkpoint") == here and final["greedy"]["episodes"] >= EPISODES:
        result = final["greedy"]
    else:
        # The best checkpoint was selected on the seeds of round 0, so its returns there are biased: use another round.
        result = play_candidate(run, checkpoint, with_torch, "comparing with the random baseline")
    return result, against_random(
        run, result, baseline
    ) if baseline else "there is no random baseline (run the collect stage)"
