"""Stage register-model: from a run's checkpoint to a registered, servable version, and who is champion."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import champions, upload
from flows.registry import models as registry
from flows.registry.gate import Verdict, against_baseline, paired
from flows.runs.lineage import lineage
from flows.runs.listeners import tell, working
from flows.runs.series import write_model
from flows.stages.summary import summary
from flows.tracking.backends import bring
from flows.tracking.mlflow_store import connect, store_uri
from rlcore.config.schema import spell
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, last_event, read_events
from rlcore.store.run_config import config_of
from rlcore.system.secrets import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from rlcore.config.groups import RunConfig

EPISODES = 100  # fewest that a champion is decided on


def register_model(run: RunDirectory) -> dict[str, Any]:
    """Register a run's policy: the best checkpoint by greedy evaluation, else the latest.

    Who is champion is decided with it. The same checkpoint registered again is the same version; what an interrupted
    call left open is finished.

    Args:
        run: its directory, with a checkpoint.

    Returns:
        name, version, aliases, decision (in words). name and version are None when the registry is off, and for a
        dry run.

    Raises:
        UserError: the run has no checkpoint.
    """
    config = config_of(run)
    # One iteration learns nothing worth a version, and a first version might become the champion.
    switches = {"dry_run": config.dry_run, "model_manager.disabled": config.model_manager.disabled}
    for key, on in switches.items():
        if on:
            result = {"name": None, "version": None, "aliases": [], "decision": f"not registered: {key}=true"}
            write_model(run, result)  # DVC asks for it
            return result
    from rlcore.judge.final import chosen
    from rlcore.store.checkpoint import manifest  # torch

    checkpoint = chosen(run)
    facts = manifest(checkpoint)
    mlflow_run = bring(run)
    client, name = connect(store_uri(run.read_config())), registry.model_name(config)
    with registry.deciding():
        version = registry.version_of_checkpoint(client, name, facts["digest"])
        if version is None:
            version = _create_version(client, config, run, checkpoint, facts, mlflow_run)
        upload.delete_leftovers(client, mlflow_run, facts["digest"])
        decision = version.tags.get("decision") or _decide(client, config, run, checkpoint, version)
        aliases = registry.aliases_of(client, name, version.version)
    if version.run_id != mlflow_run:
        decision = f"the same weights as {version.tags.get('run_dir', version.run_id)} registered: {decision}"
    result = {"name": name, "version": int(version.version), "aliases": aliases, "decision": decision}
    _record(run, result)
    summary(run)
    write_model(run, result)
    tell("registered", result)
    return result


def _create_version(
    client: MlflowClient,
    config: RunConfig,
    run: RunDirectory,
    checkpoint: Path,
    facts: dict[str, Any],
    mlflow_run: str,
) -> ModelVersion:
    """The checkpoint, whose manifest has these facts, as a version with all that it was made from in its tags."""
    from rlcore.judge.policy import export_policy  # torch

    agent = registry.agent_settings(config)
    tags = {"env_steps": str(facts["env_steps"]), "seed": str(config.seed)}  # MLflow shows them in this order
    tags = {key: redacted(spell(value)) for key, value in (agent.get("tags") or {}).items()} | tags
    tags |= {key: spell(value) for key, value in lineage(run).items()}
    tags |= {"checkpoint_digest": facts["digest"]}
    tags |= {"run_dir": str(run.path.absolute()), "checkpoint": checkpoint.relative_to(run.path).as_posix()}
    name, description = registry.model_name(config), registry.description_of(config)
    with tempfile.TemporaryDirectory() as folder:
        exported = export_policy(run, checkpoint, Path(folder) / "policy")
        return upload.create_version(client, name, exported, mlflow_run, tags, description)


def _decide(client: MlflowClient, config: RunConfig, run: RunDirectory, checkpoint: Path, version: ModelVersion) -> str:
    """Write evaluation, decision and reasons on the version and set the aliases; the decision's tag comes last."""
    name, number = version.name, str(version.version)
    upload.link_logged_model(client, version)
    client.set_registered_model_alias(name, "challenger", number)
    champion = registry.champion_of(client, name)
    if champion is not None and str(champion.version) == number:  # a kill cut the last call off after the coronation
        decision = next((m.why for m in reversed(champions.history(client, name)) if m.version == number), "")
        return _close(client, name, number, decision or f"Champion: version {number} bore the alias already")
    if champion is None:
        result, verdict = _judge_first(config, run, checkpoint)
    else:
        result, verdict = _judge_against(client, config, run, checkpoint, version, champion)
    decision = _sentence(verdict, champion)
    numbers: dict[str, Any] = {"eval_mean": result["mean"], "eval_episodes": result["episodes"]}
    if verdict is not None:
        numbers |= {"difference": verdict.difference, "difference_low": verdict.low, "difference_high": verdict.high}
        numbers |= {"compared_with": f"version {champion.version}" if champion is not None else "random baseline"}
    for key, value in numbers.items():
        client.set_model_version_tag(name, number, key, f"{value:.6g}" if isinstance(value, float) else str(value))
    # MLflow's list of versions shows the first words only: they say whether it became champion.
    words = f"{decision}. Greedy mean return {result['mean']:.1f} over {result['episodes']} episodes."
    client.update_model_version(name, number, f"{words}\n\n{registry.description_of(config)}")
    if verdict is not None and verdict.better:
        champions.crown(client, name, number, "gate", decision)
    return _close(client, name, number, decision)


def _close(client: MlflowClient, name: str, number: str, decision: str) -> str:
    """With this tag a version is decided on, and no later call decides again."""
    client.set_model_version_tag(name, number, "decision", decision)
    return decision


def _sentence(verdict: Verdict | None, champion: ModelVersion | None) -> str:
    if verdict is None:
        missing = "a champion of other spaces" if champion is not None else "no random baseline (run the collect stage)"
        return f"Not champion: there is {missing} to compare with"
    return f"{'Champion' if verdict.better else 'Not champion'}: {verdict.words}"


def _judge_first(config: RunConfig, run: RunDirectory, checkpoint: Path) -> tuple[dict[str, Any], Verdict | None]:
    """Without a champion: against the random baseline, on the run's own last evaluation if it is of this checkpoint."""
    from rlcore.judge.final import FINAL_ROUND

    events = list(read_events(run.events))
    baseline = last_event(events, "baseline")
    final = last_event(events, "evaluation", final=True)
    if final is not None and str(final["env_steps"]) == checkpoint.name and final["greedy"]["episodes"] >= EPISODES:
        result = final["greedy"]
    else:
        # The best checkpoint was chosen on round 0, which therefore flatters it: another round judges it.
        doing = "comparing with the random baseline"
        (result,) = _evaluate(config, run, [checkpoint], FINAL_ROUND, doing)
    return result, against_baseline(result, baseline) if baseline is not None else None


def _judge_against(
    client: MlflowClient,
    config: RunConfig,
    run: RunDirectory,
    checkpoint: Path,
    version: ModelVersion,
    champion: ModelVersion,
) -> tuple[dict[str, Any], Verdict | None]:
    """Both on the same seeds, which neither was trained, selected or judged on."""
    from rlcore.judge.policy import load_policy  # torch

    fresh = _fresh_round(int(champion.version), int(version.version))
    folder = registry.exported_policy(client, champion)
    ours, theirs = load_policy(checkpoint), load_policy(folder)
    same_obs = {k: ours.spec.obs.get(k) for k in theirs.obs_keys} == {k: theirs.spec.obs[k] for k in theirs.obs_keys}
    if not same_obs or ours.spec.action != theirs.spec.action:
        (result,) = _evaluate(config, run, [checkpoint], fresh, "evaluating the new version")
        return result, None
    doing = f"comparing with champion version {champion.version}"
    result, other = _evaluate(config, run, [checkpoint, folder], fresh, doing)
    return result, paired(result["returns"], other["returns"], f"champion version {champion.version}")


def _fresh_round(champion: int, challenger: int) -> int:
    """A round of evaluation seeds of this pair's own (Cantor's pairing), above 0 (training) and 1 (at its end)."""
    return 2 + (champion + challenger) * (champion + challenger + 1) // 2 + challenger


def _evaluate(
    config: RunConfig, run: RunDirectory, policies: list[Path], seeds: int, doing: str
) -> list[dict[str, Any]]:
    """Play every policy on the same seeds and tell how many episodes have ended."""
    from rlcore.judge.final import evaluate_checkpoint

    episodes = max(EPISODES, config.evaluation.final_episodes)
    say, told = working(doing), -1

    def play(index: int, policy: Path) -> dict[str, Any]:
        def on_progress(done: int, total: int) -> None:
            nonlocal told
            if index * total + done > told:
                told = index * total + done
                say(told, len(policies) * total)

        return evaluate_checkpoint(run, policy, episodes, greedy=True, round=seeds, on_progress=on_progress)

    return [play(index, policy) for index, policy in enumerate(policies)]


def _record(run: RunDirectory, result: dict[str, Any]) -> None:
    event = {key: result[key] for key in ("name", "version", "aliases")}
    known = [{k: e[k] for k in event} for e in read_events(run.events) if e["kind"] == "registered"]
    if not known or known[-1] != event:
        EventLog(run.events).append("registered", **event)
