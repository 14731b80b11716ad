"""Components of a learner as separate registered models, in an SQLite store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flows
from flows.cli.registry import list_versions
from flows.registry import models as registry
from flows.runs.check import _check_model
from flows.settings import tracking_uri
from flows.stages.register_model import register_model
from flows.tracking.mlflow_store import connect
from rlcore.errors import UserError
from rlcore.evaluation.policy import export_part
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from tests.flows.synthetic_runs import checkpointed_run, configured, evaluations
from tests.soaking import always, heavy

PARTS = ("world_model", "actor", "critic", "target_critic", "moments")
pytestmark = [
    heavy,
    pytest.mark.slow,
    # MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]


def dreamer_run(folder: Path, name: str, parts: tuple[str, ...] = PARTS, seed: int = 1) -> RunDirectory:
    """Return a Dreamer V3 run with all components in its checkpoint and `parts` in `model_manager.models`."""
    run = checkpointed_run(folder, name, weights=seed, algo="dreamer_v3")
    learning, bookkeeping = checkpoint.load(checkpoint.resolve(run, "latest"))
    rng = torch.Generator().manual_seed(seed)
    learner = learning["learner"] | {
        "critic": {"output.bias": torch.rand(3, generator=rng)},
        "target_critic": {"output.bias": torch.rand(3, generator=rng)},
        "moments": {"low": torch.tensor(-1.5), "high": torch.tensor(2.5)},
    }
    checkpoint.save(run.checkpoints, 8192, {"learner": learner}, bookkeeping)
    models: dict[str, Any] = {part: {"model_name": f"{name}-{part}", "tags": {"team": "blue"}} for part in parts}
    return configured(run, model_manager={"disabled": False, "models": models | {"agent": {"model_name": name}}})


@always
def test_register_model_registers_each_component(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dreamer_run(tmp_path / "run", "whole")
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    result = register_model(run)
    assert result["parts"] == {part: {"name": f"whole-{part}", "version": 1} for part in PARTS}
    learner = checkpoint.load(checkpoint.resolve(run, "latest"))[0]["learner"]
    for part in PARTS:
        state = flows.load_part(f"models:/whole-{part}/1")
        if part in ("world_model", "actor"):
            prefix = {"world_model": "world.", "actor": "actor."}[part]
            expected = {n[len(prefix) :]: x for n, x in learner["agent"].items() if n.startswith(prefix)}
        else:
            expected = learner[part]
        assert [*state] == [*expected] and len(state) > 0
        assert all(torch.equal(state[name], weight) for name, weight in expected.items())
    client = connect(tracking_uri())
    version = client.get_model_version("whole-critic", "1")
    assert {k: version.tags[k] for k in ("part", "policy", "policy_steps", "team")} == {
        "part": "critic",
        "policy": "whole version 1",
        "policy_steps": "8192",
        "team": "blue",
    }
    assert version.description == "Dreamer V3 critic for CartPole-v1"
    # no pickle
    files = {path.name for path in registry.resolve_uri("models:/whole-critic/1").iterdir()}
    assert files == {"part.json", "weights.json", "weights.safetensors"}
    assert register_model(run) == result
    assert len(client.search_model_versions("name = 'whole-critic'")) == 1


def test_load_world_model_accepts_registered_world_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = dreamer_run(tmp_path / "run", "alone", ("world_model",))
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    register_model(run)
    alone, whole = (
        flows.load_world_model("models:/alone-world_model/1"),
        flows.load_world_model(run.path / "checkpoints/4096"),
    )
    initial = whole.world.rssm.initial()
    initial = type(initial)(*(part.expand(2, -1) for part in initial))
    action = torch.zeros(5, 2, dtype=torch.int64).numpy()
    predicted, expected = (model.decode(model.imagine(initial, action)[0]) for model in (alone, whole))
    assert (predicted.reward == expected.reward).all() and (predicted.obs["state"] == expected.obs["state"]).all()
    with pytest.raises(UserError, match="an actor, but this world model was loaded without it; pass the actions"):
        alone.imagine(initial)
    with pytest.raises(UserError, match="contains only the component world_model of a learner, not a policy"):
        flows.load_policy("models:/alone-world_model/1")
    list_versions("alone-world_model")
    assert "world_model of alone" in " ".join(capsys.readouterr().out.split())


def test_register_model_skips_unconfigured_components(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dreamer_run(tmp_path / "run", "none", ())
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    assert "parts" not in register_model(run)
    assert not [name for name in registry.model_names(connect(tracking_uri())) if name.startswith("none-")]


class Killed(BaseException):
    """Exception that neither MLflow nor our code catches."""


def test_register_model_survives_kill_at_each_write(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    run = dreamer_run(tmp_path / "run", "cut", ())
    evaluations(monkeypatch, lambda digest, episode: 100.0 + episode % 3)
    policy = register_model(run)
    models = {"agent": {"model_name": "cut"}, "critic": {"model_name": "cut-critic"}}
    configured(run, model_manager={"disabled": False, "models": models})
    killed_at = list[str]()

    def kill_once(method: str) -> Callable[..., Any]:
        real = getattr(MlflowClient, method)

        def call(self: MlflowClient, *arguments: Any, **named: Any) -> Any:
            if method not in killed_at:
                killed_at.append(method)
                raise Killed(method)
            return real(self, *arguments, **named)

        return call

    writes = ("create_logged_model", "log_model_artifacts", "finalize_logged_model", "create_model_version")
    for method in (*writes, "set_logged_model_tags"):
        monkeypatch.setattr(MlflowClient, method, kill_once(method))
    for _ in (*writes, "set_logged_model_tags"):
        with pytest.raises(Killed):
            register_model(run)
    result = register_model(run)
    assert result == policy | {"parts": {"critic": {"name": "cut-critic", "version": 1}}}
    client = connect(tracking_uri())
    (version,) = client.search_model_versions("name = 'cut-critic'")
    logged = client.search_logged_models([client.get_run(str(version.run_id)).info.experiment_id])
    mine = {model.name: model for model in logged if model.source_run_id == version.run_id}
    assert sorted(mine) == ["critic", "policy"] and len(logged) >= len(mine)
    assert "cut-critic" in mine["critic"].tags["mlflow.modelVersions"]
    assert set(flows.load_part("models:/cut-critic/1")) == {"output.bias"}


def test_check_model_refuses_duplicate_names(tmp_path: Path) -> None:
    run = dreamer_run(tmp_path / "run", "same")
    same = {"agent": {"model_name": "same"}, "critic": {"model_name": "same"}}
    configured(run, model_manager={"disabled": False, "models": same})
    with pytest.raises(UserError, match=r"models.critic.model_name=same: the model of agent has the same name"):
        _check_model(config_of(run))


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("9", "was written by a newer version of Shepherd .format 9, this version reads 2.; use the newer version"),
        ("1", "was written by Shepherd 0.1.0, which this version cannot read; train again with this version"),
        ("null", "has no key format with an integer, so it is not a description of a policy"),
    ],
)
def test_load_part_refuses_other_formats(tmp_path: Path, number: str, reason: str) -> None:
    run = dreamer_run(tmp_path / "run", "format")
    folder = export_part(run, checkpoint.resolve(run, "latest"), "moments", tmp_path / "part")
    assert {name: float(x) for name, x in flows.load_part(folder).items()} == {"low": -1.5, "high": 2.5}
    text = (folder / "part.json").read_text()
    (folder / "part.json").write_text(text.replace('"format": 2', f'"format": {number}'))
    with pytest.raises(UserError, match=f"part.json: this file {reason}"):
        flows.load_part(folder)
    with pytest.raises(UserError, match="has no part.json, so it is not a single exported component"):
        flows.load_part(run.path)
