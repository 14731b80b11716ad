"""Registry in an SQLite store: versions, aliases, lineage, and models that load without this project."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import flows
from flows.cli.registry import promote
from flows.registry import champions
from flows.registry import models as registry
from flows.report.command_lines import bin_folder
from flows.runs.listeners import subscribe
from flows.settings import tracking_uri
from flows.stages.register_model import register_model
from flows.tracking.backends import update_backends
from flows.tracking.mlflow_run import find_run
from flows.tracking.mlflow_store import connect
from rlcore.config.learning_half import config_hash
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog, read_events
from tests.flows.synthetic_runs import (
    DICT_SPEC,
    checkpointed_run,
    config_of,
    configured,
    evaluations,
    named,
    record_final_evaluation,
)
from tests.probes import own_model
from tests.processes import at_once, digest_of
from tests.soaking import always, heavy

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    heavy,
    pytest.mark.slow,
    # MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]


@always
def test_register_model_is_idempotent_per_checkpoint(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkpointed_run(tmp_path / "run", "same", weights=1)
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    first = register_model(named(run, "same"))
    again = register_model(named(run, "same"))
    assert first == again
    assert first["version"] == 1
    assert [e["version"] for e in read_events(run.events) if e["kind"] == "registered"] == [1]


METHODS = ["log_model_artifacts", "create_model_version"]


@pytest.fixture(scope="module")
def registered_by_processes(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """Return runs registered by other processes: one by two at once, one each by a process killed in a method."""
    folder, runs, programs = tmp_path_factory.mktemp("elsewhere"), {}, []
    for number, name in enumerate(("together", *METHODS)):
        run = checkpointed_run(folder / name, f"{name}-elsewhere", weights=62 + number)
        runs[name] = named(run, f"{name}-elsewhere")
        record_final_evaluation(run)
        killed = f"MlflowClient.{name} = lambda *arguments, **named: os.kill(os.getpid(), signal.SIGKILL)"
        programs.append(f"""
            import os, signal
            from mlflow import MlflowClient
            from flows.stages.register_model import register_model
            from rlcore.store.directory import RunDirectory
            {killed if name in METHODS else ""}
            assert register_model(RunDirectory({str(run.path)!r}))["version"] == 1
        """)
    imports = (
        "import flows.stages.register_model, matplotlib.pyplot, mlflow.pyfunc, rlcore.algorithms.on_policy.ppo.learner"
    )
    codes = at_once(imports, programs[0], *programs)
    assert codes == [0, 0, -signal.SIGKILL, -signal.SIGKILL]
    return runs


def test_concurrent_registrations_create_one_version(registered_by_processes: dict[str, RunDirectory]) -> None:
    client = connect(tracking_uri())
    assert len(client.search_model_versions("name = 'together-elsewhere'")) == 1


@always
def test_first_champion_must_beat_random_baseline(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poor, good = (checkpointed_run(tmp_path / name, f"first-{name}", weights=w) for name, w in (("a", 3), ("b", 4)))
    evaluations(monkeypatch, lambda d, i: (20.0 if d == digest_of(poor) else 60.0) + i % 5)
    results = [register_model(named(run, "first")) for run in (poor, good)]
    assert [result["aliases"] for result in results] == [["challenger"], ["challenger", "champion"]]
    assert "does not beat the random baseline" in results[0]["decision"]


@always
def test_champion_is_replaced_only_by_better_model(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [checkpointed_run(tmp_path / str(i), f"dynasty-{i}", weights=10 + i) for i in range(4)]
    noise = np.random.default_rng(0).normal(scale=9.0, size=(4, 1000))
    returns = dict(zip(map(digest_of, runs), noise + np.array([[100.0], [100.3], [90.0], [140.0]]), strict=True))
    evaluated = evaluations(monkeypatch, lambda digest, episode: float(returns[digest][episode]))
    client = connect(tracking_uri())
    champion_versions, rounds = [], []
    for run in runs:
        evaluated.clear()
        register_model(named(run, "dynasty"))
        champion_versions.append(client.get_model_version_by_alias("dynasty", "champion").version)
        rounds.append({round for _, round, _ in evaluated})
        assert min(episodes for _, _, episodes in evaluated) >= 100
    assert [int(v) for v in champion_versions] == [1, 1, 1, 4]
    assert client.get_model_version_by_alias("dynasty", "challenger").version == champion_versions[-1]
    # Each comparison has its own round for both models, never that of training (0) or of the final evaluation (1).
    fresh = rounds[1:]
    assert all(len(r) == 1 for r in fresh)
    assert len(set.union(*fresh)) == 3
    assert min(set.union(*fresh)) >= 2


def test_champion_with_other_spaces_is_kept(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpointed_run(tmp_path / "first", "spaces-1", weights=1)
    other = checkpointed_run(tmp_path / "other", "spaces-2", weights=1, spec=DICT_SPEC)
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    register_model(named(first, "spaces"))
    result = register_model(named(other, "spaces"))
    assert result["aliases"] == ["challenger"]
    assert "not compared, because the champion has other" in result["decision"]


OWN = "tests.probes.own_model"  # a plugin


@always
def test_champion_whose_plugin_is_not_named_is_compared_later(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", OWN)
    own = checkpointed_run(tmp_path / "own", "plugged-1", weights=1, model=f"{OWN}:Net")
    configured(named(own, "plugged"), plugins=[OWN])
    plain = named(checkpointed_run(tmp_path / "plain", "plugged-2", weights=2), "plugged")
    evaluations(monkeypatch, lambda digest, episode: (400.0 if digest == digest_of(plain) else 100.0) + episode % 3)
    assert register_model(own)["aliases"] == ["challenger", "champion"]

    monkeypatch.setenv("SHEPHERD_PLUGINS", "")
    result = register_model(plain)
    assert (result["version"], result["aliases"]) == (2, ["challenger"])
    sentence = (
        f"Not champion: not compared with champion version 1, because the champion needs plugins=[{OWN}], which this "
        f"command does not name; `shepherd stage register-model {plain.path} 'plugins=[{OWN}]'` compares the two "
        "policies"
    )
    assert result["decision"].replace(bin_folder(), "") == sentence
    tags = connect(tracking_uri()).get_model_version("plugged", "2").tags
    assert (tags["decision"], tags["eval_mean"], tags["undecided"]) == (result["decision"], "400.99", "true")

    monkeypatch.setenv("SHEPHERD_PLUGINS", OWN)
    result = register_model(plain)
    assert (result["version"], result["aliases"]) == (2, ["challenger", "champion"])
    assert result["decision"].startswith("Champion: beats champion version 1 ")


def test_champion_whose_plugin_has_changed_is_not_compared(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", OWN)
    first = checkpointed_run(tmp_path / "first", "edited-1", weights=1, model=f"{OWN}:Net")
    configured(named(first, "edited"), plugins=[OWN])
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    register_model(first)
    monkeypatch.setattr(own_model.Net.__init__, "__defaults__", (24,))  # units
    changed = checkpointed_run(tmp_path / "changed", "edited-2", weights=2, model=f"{OWN}:Net")
    result = register_model(configured(named(changed, "edited"), plugins=[OWN]))
    assert (result["version"], result["aliases"]) == (2, ["challenger"])
    assert "not compared with champion version 1, because the champion cannot be loaded (" in result["decision"]


def test_register_model_completes_interrupted_decision(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkpointed_run(tmp_path / "run", "cut", weights=20)

    def interrupt(digest: str, episode: int) -> float:
        raise KeyboardInterrupt

    evaluations(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        register_model(named(run, "cut"))
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    result = register_model(named(run, "cut"))
    assert (result["version"], result["aliases"]) == (1, ["challenger", "champion"])


def only_model(name: str, run: RunDirectory) -> Any:
    """Check that a run has one complete logged model and one version, linked once; return the version."""
    client = connect(tracking_uri())
    (version,) = client.search_model_versions(f"name = '{name}'")
    assert version.run_id is not None
    mlflow_run = client.get_run(version.run_id)
    assert mlflow_run.outputs is not None
    logged = client.search_logged_models([mlflow_run.info.experiment_id], f"source_run_id = '{version.run_id}'")
    assert [model.artifact_location for model in logged] == [version.source]
    assert [output.model_id for output in mlflow_run.outputs.model_outputs] == [logged[0].model_id]
    assert json.loads(logged[0].tags["mlflow.modelVersions"]) == [{"name": name, "version": int(version.version)}]
    assert logged[0].status == "READY"
    assert (version.tags["policy_steps"], "decision" in version.tags) == ("4096", True)
    obs = np.random.default_rng(6).normal(size=(16, 4)).astype(np.float32)
    import mlflow

    loaded = mlflow.pyfunc.load_model(f"models:/{name}/{version.version}")
    assert np.array_equal(loaded.predict(obs)["action"], flows.load_policy(run.path).predict(obs))
    return version


MLFLOW_WRITES = (
    "create_logged_model",
    "log_model_artifacts",
    "log_outputs",
    "finalize_logged_model",
    "create_registered_model",
    "create_model_version",
    "set_logged_model_tags",
    "set_registered_model_alias",
    "set_registered_model_tag",
    "set_model_version_tag",
    "update_model_version",
)


class Killed(BaseException):
    """Exception that neither MLflow nor our code catches."""


def test_register_model_survives_kill_at_each_write(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    run = checkpointed_run(tmp_path / "run", "each-write", weights=60)
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    killed_at: list[tuple[str, str]] = []

    def kill_once(method: str) -> Callable[..., Any]:
        real = getattr(MlflowClient, method)

        def call(self: MlflowClient, *arguments: Any, **named: Any) -> Any:
            # Setters are killed once for each alias or key.
            key = arguments[2 if method == "set_model_version_tag" else 1] if method.startswith("set_") else ""
            moment = (method, key)
            if moment in killed_at:
                return real(self, *arguments, **named)
            killed_at.append(moment)
            if method == "log_model_artifacts":  # only a part is written
                part = tmp_path / "part"
                part.mkdir()
                (part / "MLmodel").write_text("torn")
                real(self, arguments[0], str(part))
            raise Killed(moment)

        return call

    for method in MLFLOW_WRITES:
        monkeypatch.setattr(MlflowClient, method, kill_once(method))
    attempts = 0
    while True:
        attempts += 1
        try:
            result = register_model(named(run, "each-write"))
            break
        except Killed:
            continue
    assert {method for method, _ in killed_at} == set(MLFLOW_WRITES)
    assert attempts == len(killed_at) + 1
    assert (result["version"], result["aliases"]) == (1, ["challenger", "champion"])
    assert "beats the random baseline" in only_model("each-write", run).description
    history = champions.history(connect(tracking_uri()), "each-write")
    assert [(move.version, move.before, move.how) for move in history] == [("1", None, "gate")]


@pytest.mark.parametrize("method", METHODS)
def test_register_model_reuses_logged_model_after_kill(
    registered_by_processes: dict[str, RunDirectory], method: str
) -> None:
    run, client = registered_by_processes[method], connect(tracking_uri())
    found = find_run(client, run)
    assert found is not None
    logged = client.search_logged_models([found.info.experiment_id], f"source_run_id = '{found.info.run_id}'")
    assert [model.status for model in logged] == ["PENDING" if method == "log_model_artifacts" else "READY"]
    assert register_model(run)["version"] == 1
    assert only_model(f"{method}-elsewhere", run).source == logged[0].artifact_location


def test_register_model_removes_duplicate_of_late_request(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    run = named(checkpointed_run(tmp_path / "run", "late", weights=70), "late")
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    real, pending = MlflowClient.create_logged_model, []

    def create(self: MlflowClient, *arguments: Any, **named: Any) -> Any:
        if not pending:  # the process is killed after it sent the request
            pending.append(lambda: real(self, *arguments, **named))
            raise Killed
        created = real(self, *arguments, **named)
        pending.pop()()  # now the server handles the first request
        pending.append(None)
        return created

    monkeypatch.setattr(MlflowClient, "create_logged_model", create)
    with pytest.raises(Killed):
        register_model(run)
    assert register_model(run)["version"] == 1
    assert "beats the random baseline" in only_model("late", run).description


def test_register_model_shares_logged_model_of_equal_weights(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    killed, other = (named(checkpointed_run(tmp_path / i, f"twin-{i}", weights=71), "twins") for i in "ab")
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)

    def kill(*arguments: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(MlflowClient, "create_model_version", kill)
        register_model(killed)
    assert register_model(other)["version"] == 1
    assert register_model(killed)["version"] == 1
    client = connect(tracking_uri())
    experiment = client.get_run(update_backends(other)).info.experiment_id
    digest = digest_of(other)
    logged = client.search_logged_models([experiment], f"tags.`shepherd.checkpoint_digest` = '{digest}'")
    assert [model.source_run_id for model in logged] == [update_backends(other)]


def test_gate_reports_comparison_progress(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [named(checkpointed_run(tmp_path / str(i), f"told-{i}", weights=75 + i), "told") for i in range(2)]
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    progress: list[dict[str, Any]] = []
    with subscribe(lambda kind, facts: progress.append(facts) if kind == "work" else None):
        for run in runs:
            register_model(run)
    first, second = progress[:100], progress[100:]
    assert {facts["doing"] for facts in first} == {"comparing with the random baseline"}
    assert {facts["doing"] for facts in second} == {"comparing with champion version 1"}
    assert [(facts["done"], facts["total"]) for facts in first] == [(i, 100) for i in range(1, 101)]
    # Episodes of both models; equal returns decide the comparison early.
    last = second[-1]["done"]
    assert last < 200 and last % 20 == 0
    assert [(facts["done"], facts["total"]) for facts in second] == [(i, 200) for i in range(2, last + 1, 2)]


def test_gate_stops_when_verdict_is_clear(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (named(checkpointed_run(tmp_path / str(i), f"clear-{i}", weights=80 + i), "clear") for i in range(2))
    evaluations(monkeypatch, lambda digest, episode: (450.0 if digest == digest_of(good) else 22.0) + episode % 3)
    assert register_model(good)["aliases"] == ["challenger", "champion"]
    decision = register_model(bad)["decision"]
    assert decision.startswith("Not champion: does not beat champion version 1 (450.9) on the same new seeds: ")
    assert decision.endswith(
        "over 20 of 100 episodes; stopped early, because the other 80 could not change this result"
    )
    tags = connect(tracking_uri()).get_model_version("clear", "2").tags
    assert (tags["eval_episodes"], tags["undecided"]) == ("20", "false")


@pytest.mark.parametrize("timer", [True, False])
def test_gate_time_limits_comparison_with_champion(
    timer: bool, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = f"time-{timer}"
    monkeypatch.setenv("SHEPHERD_PLUGINS", OWN)
    first, second = (named(checkpointed_run(tmp_path / str(i), f"{model}-{i}", weights=85 + i), model) for i in (0, 1))
    clock = [0.0]
    monkeypatch.setattr("flows.registry.playing.time.monotonic", lambda: clock[0])
    noise = np.random.default_rng(0).normal(scale=20.0, size=(2, 100))

    def play(digest: str, episode: int) -> float:
        clock[0] += 0.25  # half a second for an episode of both models
        old = digest == digest_of(first)
        return float(noise[int(old)][episode]) + (100.0 if old else 115.0)

    evaluations(monkeypatch, play)
    register_model(first)
    time_fields = {"wall_s": 6.0} if timer else {}
    EventLog(second.events).append(
        "metrics", policy_steps=4096, env_steps=4096, values={"Rewards/rew_avg": 1.0}, **time_fields
    )
    if not timer:
        write_json(second.summary, {"wall_s": 6.0})
    result = register_model(second)
    assert result["decision"].startswith("Not champion: undecided against champion version 1")
    assert (
        "the time limit of 0:06 (model_manager.gate_time=1.0 × training time) was reached; `" in result["decision"]
    )  # the first step beyond 6 s
    command = f"shepherd resume {second.path} model_manager.gate_time=null 'plugins=[{OWN}]'"
    assert f"{command}` plays all" in result["decision"]
    models = yaml.safe_load(second.config.read_text())["model_manager"]["models"]
    result = register_model(configured(second, model_manager={"models": models, "gate_time": None}))
    assert result["decision"].startswith("Champion: beats champion version 1")
    assert result["aliases"] == ["challenger", "champion"]
    assert register_model(second) == result  # the decision is final


@pytest.mark.parametrize(
    ("limit", "decision_start"),
    [
        (8.0, "Champion: beats the random baseline (22.0): "),
        (3.0, "Not champion: undecided against the random baseline: 13 of 100 episodes were played; the time limit"),
    ],
)
def test_gate_time_limits_comparison_with_baseline(
    limit: float, decision_start: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = named(checkpointed_run(tmp_path / "run", f"first-{limit}", weights=95), f"first-{limit}")
    clock = [0.0]
    monkeypatch.setattr("flows.registry.playing.time.monotonic", lambda: clock[0])

    def play(digest: str, episode: int) -> float:
        clock[0] += 0.25
        return 100.0 + episode % 7

    evaluations(monkeypatch, play)
    EventLog(run.events).append("baseline", mean=22.0, std=10.0, episodes=100)
    EventLog(run.events).append("metrics", policy_steps=4096, env_steps=4096, values={}, wall_s=limit)
    decision = register_model(run)["decision"]
    assert decision.startswith(decision_start)
    assert ("over 33 episodes" in decision) == (limit == 8.0)  # the first step beyond 8 s


def test_gate_repeats_comparison_if_champion_changes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [named(checkpointed_run(tmp_path / str(i), f"busy-{i}", weights=90 + i), "busy") for i in range(3)]
    means, promotions = {digest_of(run): 100.0 * (i + 1) for i, run in enumerate(runs)}, []

    def play(digest: str, episode: int) -> float:
        if digest == digest_of(runs[2]) and not promotions:
            promotions.append(promote("busy", "1"))  # would block if the gate locked the registry
        return means[digest] + episode % 3

    evaluations(monkeypatch, play)
    results = [register_model(run) for run in runs]
    assert promotions == ["busy: champion is version 1, was version 2 (promoted by hand)"]
    assert "beats champion version 1 (" in results[2]["decision"]
    steps = [(move.version, move.before) for move in champions.history(connect(tracking_uri()), "busy")]
    assert steps == [("1", None), ("2", "1"), ("1", "2"), ("3", "1")]


def test_model_version_has_lineage_and_decision_tags(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkpointed_run(tmp_path / "run", "lineage", weights=30)
    run.dataset.mkdir()
    result = {"mean": 22.0, "std": 11.0, "ci95": [19.8, 24.2], "episodes": 100, "returns": [22.0]}
    write_json(run.dataset / "manifest.json", {"result": result})
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    result = register_model(named(run, "lineage"))
    version = connect(tracking_uri()).get_model_version("lineage", "1")
    tags = version.tags
    assert tags["shepherd.run_id"] == "lineage"
    assert tags["shepherd.config_hash"] == config_hash(config_of(run))
    assert (tags["shepherd.commit"], tags["shepherd.dirty"], tags["shepherd.lock_hash"]) == ("c0ffee", "false", "10c4")
    assert tags["shepherd.checkpoint_digest"] == digest_of(run)
    assert len(tags["shepherd.dataset_digest"]) == 64
    # No other tag of a version is a hash.
    assert not [key for key, value in tags.items() if re.fullmatch("[0-9a-f]{16,}", value) and "shepherd." not in key]
    assert tags["policy_steps"] == "4096"
    assert float(tags["eval_mean"]) == pytest.approx(100.99)
    assert tags["decision"] == result["decision"]
    assert result["decision"] in version.description
    assert version.run_id == update_backends(run)


def test_register_model_skips_disabled_registry(home: Path, tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "off", weights=1)
    result = register_model(configured(run, model_manager={"disabled": True, "models": {}}))
    assert result["version"] is None
    assert "model_manager.disabled" in result["decision"]
    assert not [e for e in read_events(run.events) if e["kind"] == "registered"]


def test_model_uri_resolves_to_registered_policy(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = checkpointed_run(tmp_path / "run", "resolve", weights=40)
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    register_model(named(run, "resolve"))
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    expected = flows.load_policy(run.path).predict(obs)
    assert 0 < expected.mean() < 1
    assert registry.run_of("models:/resolve@champion") == checkpoint.resolve(run, "latest")
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UserError, match=r"its checkpoint .* does not exist on this machine.*load_policy"):
        registry.run_of("models:/resolve/1")
    shutil.rmtree(run.path)
    with pytest.raises(UserError, match=r"its run .* does not exist on this machine.*load_policy"):
        registry.run_of("models:/resolve/1")
    for uri in ("models:/resolve@champion", "models:/resolve/1", "models:/resolve/latest"):
        assert np.array_equal(flows.load_policy(uri).predict(obs), expected)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/resolv@champion", "no model 'resolv'"),
        ("models:/missing@winner", "missing has no such version or alias; existing: @challenger, @champion, /1"),
        ("models:/missing/7", "missing has no such version or alias; existing: @challenger, @champion, /1"),
        ("models:missing", "write models:/NAME@champion"),
    ],
)
def test_resolve_uri_refuses_unknown_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    run = checkpointed_run(tmp_path / "run", "missing", weights=41)
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    register_model(named(run, "missing"))
    with pytest.raises(UserError, match=message) as caught:
        registry.resolve_uri(uri)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"model_name": "o'brien"}, r"model_name=o'brien: must start with a letter or digit"),
        ({"model_name": "../elsewhere"}, r"model_name=\.\.-elsewhere: must start with a letter"),
        ({"model_name": "at@home"}, r"model_name=at@home: must start with a letter"),
        ({"model_name": 7}, r"model_name=7: must be text"),
        ({"model_name": ["a"]}, r"must be text"),
        ("mine", r"models.agent=mine: this is a group of keys"),
        ({"tags": "blue"}, r"models.agent.tags=blue: this is a group of keys"),
    ],
)
def test_prepare_refuses_invalid_model_name(tmp_path: Path, agent: Any, message: str) -> None:
    from flows.runs.check import prepare

    run = checkpointed_run(tmp_path / "run", "named", weights=1)
    with pytest.raises(UserError, match=message):
        prepare(config_of(run, model_manager={"disabled": False, "models": {"agent": agent}}), {})
    prepare(config_of(run, model_manager={"disabled": True, "models": {"agent": agent}}), {})


@always
def test_model_name_replaces_slashes_with_dashes(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "slashes", weights=1)
    assert registry.model_name(config_of(run)) == "ppo-CartPole-v1"
    assert registry.model_name(config_of(named(run, "ppo_ALE/Pong-v5"))) == "ppo_ALE-Pong-v5"


def test_resolve_uri_accepts_quote_in_foreign_name(home: Path) -> None:
    client = connect(tracking_uri())
    client.create_registered_model("o'brien")
    client.create_model_version("o'brien", "file:///nowhere")
    with pytest.raises(UserError, match="o'brien has no such version or alias; existing: /1"):
        registry.resolve_uri("models:/o'brien/2")
    with pytest.raises(UserError, match="not registered by Shepherd"):
        registry.run_of("models:/o'brien/latest")


SERVE = """
    import json, sys

    absent = "flows conf hydra omegaconf gymnasium lightning_fabric lightning prefect optuna dvc".split()

    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in absent:
                raise ImportError(f"serving imported {name}")

    # The checkout is installed here, in one of the two ways that installers know; where models are served it is not.
    sys.path[:] = [place for place in sys.path if place != sys.argv[2]]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
    sys.meta_path.insert(0, Forbidden())
    import importlib.util
    assert importlib.util.find_spec("rlcore") is None
    import mlflow, numpy as np

    def widened(batch):
        wide = {k: v.astype(np.float64) for k, v in batch.items()}
        return wide if len(wide) > 1 else next(iter(wide.values()))

    def ask(uri, batch):
        model = mlflow.pyfunc.load_model(uri)
        batch = {k: np.asarray(v["values"], v["dtype"]) for k, v in batch.items()}
        obs = batch if len(batch) > 1 else next(iter(batch.values()))
        said = {"greedy": model.predict(obs)["action"].tolist(), "rlcore": sys.modules["rlcore"].__file__}
        said["sampled"] = model.predict(obs, params={"deterministic": False})["action"].tolist()
        said["unwrapped"] = model.unwrap_python_model().predict(None, widened(batch))["action"].tolist()
        wrong = {k: v[..., :1] for k, v in batch.items()} if len(batch) > 1 else obs[:, :3]
        try:
            model.predict(wrong)
        except Exception as error:
            said["error"] = str(error)
        said["inputs"] = model.metadata.signature.inputs.to_dict()
        said["outputs"] = model.metadata.signature.outputs.to_dict()
        return said

    print(json.dumps([ask(uri, batch) for uri, batch in json.loads(sys.argv[1])]))
"""


Answer = tuple[RunDirectory, dict[str, np.ndarray], dict[str, Any]]


@pytest.fixture(scope="module")
def served_answers(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return predictions of registered models in a process with MLflow, torch and NumPy but without this project.

    One model takes an array, the other a dict. Each value is the run, the observations and the output.
    """
    folder, rng = tmp_path_factory.mktemp("answers"), np.random.default_rng(1)
    runs = {
        "array": checkpointed_run(folder / "array", "served", weights=50),
        "dict": checkpointed_run(folder / "dict", "rooms", weights=51, spec=DICT_SPEC),
    }
    observations: dict[str, dict[str, np.ndarray]] = {
        "array": {"state": rng.normal(size=(32, 4)).astype(np.float32)},
        "dict": {"position": rng.normal(size=(16, 2, 3)), "room": rng.integers(1, 6, size=16)},
    }
    with pytest.MonkeyPatch.context() as patch:
        evaluations(patch, lambda digest, episode: 100.0 + episode % 3)
        for name, run in runs.items():
            register_model(named(run, f"served-{name}"))
    questions = [
        (f"models:/served-{name}@champion", {k: {"values": v.tolist(), "dtype": str(v.dtype)} for k, v in obs.items()})
        for name, obs in observations.items()
    ]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", textwrap.dedent(SERVE), json.dumps(questions), str(ROOT)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    return {name: (runs[name], observations[name], answer) for name, answer in zip(observations, output, strict=True)}


def test_registered_model_predicts_without_project_installed(served_answers: dict[str, Answer]) -> None:
    run, obs, answer = served_answers["array"]
    assert answer["greedy"] == flows.load_policy(run.path).predict(obs["state"]).tolist()
    # Only the unwrapped model accepts float64 arrays: MLflow checks the signature.
    assert answer["unwrapped"] == answer["greedy"]
    assert answer["sampled"] != answer["greedy"]
    assert not answer["rlcore"].startswith(str(ROOT))
    assert answer["inputs"] == [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]
    assert [(o["name"], o["tensor-spec"]["dtype"], o["tensor-spec"]["shape"]) for o in answer["outputs"]] == [
        ("action", "int64", [-1]),
        ("logprob", "float32", [-1]),
        ("value", "float32", [-1]),
    ]
    assert "(-1, 4)" in answer["error"]


def test_registered_model_accepts_dict_observations(served_answers: dict[str, Answer]) -> None:
    run, obs, answer = served_answers["dict"]
    assert answer["greedy"] == flows.load_policy(run.path).predict(obs).tolist()
    assert [(i["name"], i["tensor-spec"]["dtype"], i["tensor-spec"]["shape"]) for i in answer["inputs"]] == [
        ("position", "float64", [-1, 2, 3]),
        ("room", "int64", [-1]),
    ]
    assert "(-1, 2, 3)" in answer["error"]


def test_registered_model_contains_no_pickle(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = checkpointed_run(tmp_path / "run", "plain", weights=52)
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    register_model(named(run, "plain"))
    client = connect(tracking_uri())
    folder = Path(client.get_model_version_download_uri("plain", "1").removeprefix("file://"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"policy.json", "agent.safetensors", "served_policy.py", "MLmodel"} <= {path.name for path in files}
    assert not [path for path in files if path.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05", b"PK")]
    assert not [path for path in files if "__pycache__" in path.parts]
    assert {"torch", "numpy", "safetensors", "mlflow"} == {
        line.split("==")[0] for line in (folder / "requirements.txt").read_text().split()
    }


@pytest.mark.parametrize("uri", ["models:/nosuch@champion", "models:/nosuch/1", "models:/nosuch/latest"])
def test_version_at_creates_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(UserError, match=f"^{uri}: no model 'nosuch'; no model is registered yet$"):
        registry.version_at(uri)
    assert [*tmp_path.iterdir()] == []
