"""register-model: from a run's checkpoint to a registered, servable version, and who is champion."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import champions, upload
from flows.registry import models as registry
from flows.registry.gate import Verdict, against_baseline, paired
from flows.report.sentences import number
from flows.runs.lineage import lineage
from flows.runs.listeners import tell, working
from flows.runs.series import write_model
from flows.stages.summary import summarise
from flows.tracking.backends import bring
from flows.tracking.mlflow_store import connect, store_uri
from rlcore.config.schema import spell
from rlcore.judge import final
from rlcore.judge.play import part_of
from rlcore.judge.policy import export_policy, load_policy
from rlcore.store.checkpoint import chosen, manifest
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, last_event, read_events
from rlcore.store.run_config import config_of
from rlcore.system.secrets import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

EPISODES = 100  # fewest that a champion is decided on


def register_model(run: RunDirectory) -> dict[str, Any]:
    """Register a run's policy, the best checkpoint by greedy evaluation, else the latest, and decide on the champion.

    Gives name, version, aliases and the decision in words; name and version are None for a dry run and where the
    registry is off. The same checkpoint is the same version; what an interrupted call left open is finished.
    """
    config = config_of(run)
    # One iteration learns nothing worth a version, and a first version might become the champion.
    switches = {"dry_run": config.dry_run, "model_manager.disabled": config.model_manager.disabled}
    if off := next((key for key, on in switches.items() if on), None):
        result = {"name": None, "version": None, "aliases": [], "decision": f"not registered: {off}=true"}
        write_model(run, result)  # DVC asks for it
        tell("registered", result)
        return result
    checkpoint, name = chosen(run), registry.model_name(config)
    digest, mlflow_run = manifest(checkpoint)["digest"], bring(run)
    client = connect(store_uri(run.read_config()))
    with registry.deciding():
        version = registry.version_of_checkpoint(client, name, digest)
        version = version or _create_version(client, name, run, checkpoint, mlflow_run)
        upload.delete_leftovers(client, mlflow_run, digest)
        decision = version.tags.get("decision") or _decide(client, run, checkpoint, version)
        aliases = sorted(client.get_model_version(name, version.version).aliases)
    if version.run_id != mlflow_run:
        decision = f"the same weights as {version.tags.get('run_dir', version.run_id)} registered: {decision}"
    event = {"name": name, "version": int(version.version), "aliases": aliases}
    noted = last_event(read_events(run.events), "registered")
    if noted is None or not event.items() <= noted.items():
        EventLog(run.events).append("registered", **event)
    summarise(run)  # no picture: registration changes nothing in it
    result = {**event, "decision": decision}
    write_model(run, result)
    tell("registered", result)
    return result


def _create_version(
    client: MlflowClient, name: str, run: RunDirectory, checkpoint: Path, mlflow_run: str
) -> ModelVersion:
    """The checkpoint as a version with all that it was made from in its tags, which MLflow shows in this order."""
    config, facts = config_of(run), manifest(checkpoint)
    chosen_tags = registry.agent_settings(config).get("tags") or {}
    tags = {key: redacted(spell(value)) for key, value in chosen_tags.items()}
    tags |= {"policy_steps": str(facts["policy_steps"]), "seed": str(config.seed)}
    tags |= {key: spell(value) for key, value in lineage(run).items()}
    tags |= {"checkpoint_digest": facts["digest"]}
    tags |= {"run_dir": str(run.path.absolute()), "checkpoint": checkpoint.relative_to(run.path).as_posix()}
    with tempfile.TemporaryDirectory() as folder:
        exported = export_policy(run, checkpoint, Path(folder) / "policy")
        return upload.create_version(client, name, exported, mlflow_run, tags, registry.description_of(config))


def _decide(client: MlflowClient, run: RunDirectory, checkpoint: Path, version: ModelVersion) -> str:
    """Compare, write figures and reasons on the version, set the aliases; the decision."""
    name, this = version.name, str(version.version)
    upload.link_logged_model(client, version)
    client.set_registered_model_alias(name, "challenger", this)
    champion = registry.champion_of(client, name)
    if champion is not None and str(champion.version) == this:  # a kill cut the last call off after the coronation
        moves = reversed(champions.history(client, name))
        decision = next((move.why for move in moves if move.version == this), "")
        decision = decision or f"Champion: version {this} bore the alias already"
    else:
        if champion is None:
            other, (result, verdict) = "random baseline", _against_baseline(run, checkpoint)
        else:
            other = f"version {champion.version}"
            result, verdict = _against_champion(client, run, checkpoint, version, champion)
        figures: dict[str, Any] = {"eval_mean": result["mean"], "eval_episodes": result["episodes"]}
        if isinstance(verdict, Verdict):
            decision = f"{'Champion' if verdict.better else 'Not champion'}: {verdict.words}"
            figures |= {"difference": verdict.difference, "difference_low": verdict.low}
            figures |= {"difference_high": verdict.high, "compared_with": other}
        else:
            decision = f"Not champion: there is {verdict} to compare with"
        for key, value in figures.items():
            client.set_model_version_tag(name, this, key, f"{value:.6g}" if isinstance(value, float) else str(value))
        # MLflow's list of versions shows the first words only: they say whether it became champion.
        words = f"{decision}. Greedy mean return {number(result['mean'])} over {result['episodes']} episodes."
        client.update_model_version(name, this, f"{words}\n\n{registry.description_of(config_of(run))}")
        if isinstance(verdict, Verdict) and verdict.better:
            champions.crown(client, name, this, "gate", decision)
    client.set_model_version_tag(name, this, "decision", decision)  # with it no later call decides again
    return decision


def _against_baseline(run: RunDirectory, checkpoint: Path) -> tuple[dict[str, Any], Verdict | str]:
    """The version's figures and how it does against the random policy, or what is missing to say so."""
    events = list(read_events(run.events))
    baseline, judged = last_event(events, "baseline"), last_event(events, "evaluation", final=True)
    here = checkpoint.relative_to(run.path).as_posix()
    if judged is not None and judged.get("checkpoint") == here and judged["greedy"]["episodes"] >= EPISODES:
        result = judged["greedy"]
    else:
        # The best checkpoint was chosen on round 0, which therefore flatters it: another round judges it.
        (result,) = _evaluate(run, [checkpoint], final.FINAL_ROUND, "comparing with the random baseline")
    return result, against_baseline(result, baseline) if baseline else "no random baseline (run the collect stage)"


def _against_champion(
    client: MlflowClient, run: RunDirectory, checkpoint: Path, version: ModelVersion, champion: ModelVersion
) -> tuple[dict[str, Any], Verdict | str]:
    """The same against the champion, on the same seeds, which neither was trained, selected or judged on."""
    pair, number = int(champion.version) + int(version.version), int(version.version)
    seeds = 2 + pair * (pair + 1) // 2 + number  # of this pair alone (Cantor), above those of training and its end
    folder = registry.exported_policy(client, champion)
    ours, theirs = load_policy(checkpoint), load_policy(folder)
    same_obs = {k: ours.spec.obs.get(k) for k in theirs.obs_keys} == {k: theirs.spec.obs[k] for k in theirs.obs_keys}
    if not same_obs or ours.spec.action != theirs.spec.action:
        (result,) = _evaluate(run, [checkpoint], seeds, "evaluating the new version")
        return result, "a champion of other spaces"
    name = f"champion version {champion.version}"
    result, other = _evaluate(run, [checkpoint, folder], seeds, f"comparing with {name}")
    return result, paired(result["returns"], other["returns"], name)


def _evaluate(run: RunDirectory, policies: list[Path], seeds: int, doing: str) -> list[dict[str, Any]]:
    """Play every policy on the same seeds and tell how many episodes have ended."""
    episodes, say = max(EPISODES, config_of(run).evaluation.final_episodes), working(doing)
    return [
        final.evaluate_checkpoint(run, policy, episodes, round=seeds, on_progress=part_of(say, index, len(policies)))
        for index, policy in enumerate(policies)
    ]
