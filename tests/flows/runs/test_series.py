"""Folder `results/` of a run, compared with its event log, checkpoint and summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from flows.runs.series import write_model, write_results
from flows.stages.register_model import register_model
from rlcore.evaluation.policy import load_policy
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import checkpointed_run
from tests.processes import digest_of

GREEDY = {"mean": 90.0, "ci95": [89.0, 91.0], "returns": [90.0] * 100}
SUMMARY: dict[str, Any] = {
    "policy_steps": 4096,
    "env_steps": 4000,
    "updates": 64,
    "wall_s": 3.5,
    "eval": {"greedy": GREEDY, "stochastic": None},
    "baseline": {"mean": 22.0, "ci95": [20.0, 24.0]},
    "checkpoint": "checkpoints/4096",
}


def finished(folder: Path) -> RunDirectory:
    """Return a run with two windows (one without episode ends), an evaluation during training and a final one."""
    run = checkpointed_run(folder, "0" * 16, weights=3)
    log = EventLog(run.events)
    log.append("metrics", policy_steps=1000, values={"Rewards/rew_avg": 21.5, "Game/ep_len_avg": 21.5})
    log.append("metrics", policy_steps=2000, values={"Loss/value_loss": 3.0})
    log.append("evaluation", policy_steps=2048, final=False, greedy={"mean": 70.0, "ci95": [60.0, 80.0]})
    log.append("evaluation", policy_steps=4096, final=True, greedy=GREEDY)
    return run


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_write_results_matches_log_summary_and_checkpoint(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    folder = write_results(run, SUMMARY)
    assert folder == run.path / "results"
    assert (folder / "training.csv").read_text() == "policy_steps,episode_return,episode_length\n1000,21.5,21.5\n"
    evaluations = (
        "policy_steps,greedy_mean,ci95_low,ci95_high\n2048,70.0,60.0,80.0\n"  # the final one is in metrics.json
    )
    assert (folder / "evaluations.csv").read_text() == evaluations
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics == {  # no stochastic evaluation, no wall-clock times
        "policy_steps": 4096,
        "env_steps": 4000,
        "updates": 64,
        "greedy": {"mean": 90.0, "ci95_low": 89.0, "ci95_high": 91.0},
        "random_baseline": {"mean": 22.0, "ci95_low": 20.0, "ci95_high": 24.0},
    }
    assert load_policy(folder / "policy").description["digest"] == digest_of(run)


def test_write_results_repairs_missing_files(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    folder = write_results(run, SUMMARY)
    before = content(folder)
    write_results(run, SUMMARY)
    assert content(folder) == before
    (folder / "policy/agent.safetensors").unlink()
    (folder / "metrics.json").unlink()
    write_results(run, SUMMARY)
    assert content(folder) == before


def test_write_model_stores_decision(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    result = {"name": "ppo-CartPole-v1", "version": 3, "aliases": ["challenger"], "decision": "Not champion: …"}
    assert json.loads(write_model(run, result).read_text()) == result


def test_register_model_writes_model_file_if_disabled(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.config.write_text(yaml.safe_dump(run.read_config() | {"model_manager": {"disabled": True}}))
    assert register_model(run)["version"] is None
    model = json.loads((run.path / "results/model.json").read_text())
    assert model["decision"] == "not registered: model_manager.disabled=true"


def test_write_results_contains_numbers_from_info(tmp_path: Path) -> None:
    run, won = finished(tmp_path / "run"), {"mean": 0.5, "ci95": [0.25, 0.75], "episodes": 8}
    later = {"mean": 80.0, "ci95": [79.0, 81.0], "info": {"won": won}}
    EventLog(run.events).append("evaluation", policy_steps=3072, final=False, greedy=later)
    folder = write_results(run, SUMMARY | {"eval": {"greedy": GREEDY | {"info": {"won": won}}, "stochastic": None}})
    rows = (folder / "evaluations.csv").read_text().splitlines()
    assert rows[0].endswith("ci95_high,won") and rows[1:] == ["2048,70.0,60.0,80.0,", "3072,80.0,79.0,81.0,0.5"]
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["greedy"]["info"] == {"won": {"mean": 0.5, "ci95_low": 0.25, "ci95_high": 0.75}}
