from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from rlcore.evaluation.policy import load_policy, write_policy_folder
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a short run with normalized observations and one checkpoint."""
    directory = prepare(tmp_path_factory.mktemp("runs") / "run", total_steps=128, algo__normalize_obs=True)
    session = RunTrainer(directory)
    session.advance(lambda progress: None)
    session.save()
    session.close()
    return directory


OBS = np.array([[0.01, -0.5, 0.02, 0.6], [0.0, 1.5, -0.1, -0.9], [0.03, 0.1, 0.12, 0.4]], np.float32)


def test_predict_matches_saved_agent(run: RunDirectory) -> None:
    session = RunTrainer(run)  # continues from the checkpoint
    agent = session.learner.agent
    with torch.no_grad():
        _, action, _ = agent.act((), {"state": torch.from_numpy(OBS)}, torch.ones(3).bool(), None, True)
    session.close()
    assert load_policy(run.path).predict(OBS).tolist() == agent.to_env(action).tolist()


def test_load_policy_accepts_run_checkpoint_and_export(run: RunDirectory, tmp_path: Path) -> None:
    path = checkpoint.resolve(run, "latest")
    exported = write_policy_folder(run, path, tmp_path / "policy")
    policies = [load_policy(p) for p in (run.path, path, exported)]
    weights = [torch.cat([v.flatten() for v in p.agent.parameters()]) for p in policies]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    moments = [p.agent.encoder.normalizer.moments for p in policies]
    assert moments[0].count > 0 and all(torch.equal(m.mean, moments[0].mean) for m in moments)


def test_predict_returns_action_or_batch_like_input(run: RunDirectory) -> None:
    policy = load_policy(run.path)
    batch = policy.predict(OBS)
    assert batch.shape == (3,) and batch.dtype == np.int64
    for obs, action in zip(OBS, batch, strict=True):
        assert policy.predict(obs) == action == policy.predict({"state": obs})
        assert np.ndim(policy.predict(obs)) == 0
    assert policy.predict(OBS.astype(np.float64).tolist()).tolist() == batch.tolist()


def test_predict_sampled_actions_depend_on_seed(run: RunDirectory) -> None:
    many = np.repeat(OBS[:1], 200, 0)
    first, again, other = (load_policy(run.path, seed=s).predict(many, greedy=False).tolist() for s in (1, 1, 2))
    assert first == again != other and set(first) == {0, 1}


def test_predict_leaves_normalizer_unchanged(run: RunDirectory) -> None:
    policy = load_policy(run.path)
    before = policy.agent.encoder.normalizer.moments.count
    policy.predict(OBS + 100)
    assert policy.agent.encoder.normalizer.moments.count == before


@pytest.mark.parametrize(
    ("obs", "sentence"),
    [
        (np.zeros((2, 3)), r"obs 'state': expected shape \(4,\) or \(N, 4\), got \(2, 3\)"),
        ({"stat": np.zeros(4)}, "obs: key 'state' is missing; expected state"),
        (np.array(["a"] * 4), "obs 'state': expected numbers"),
        ([[0, 0, 0, 0], [0, 0, float("nan"), 0]], r"obs 'state': expected finite float32 numbers, got nan at \[1, 2\]"),
        ([1e39, 0, 0, 0], r"obs 'state': expected finite float32 numbers, got inf at \[0\]"),
    ],
)
def test_predict_refuses_invalid_observation(run: RunDirectory, obs: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_policy(run.path).predict(obs)


def test_predict_requires_discrete_observation_in_range() -> None:
    from rlcore.algorithms.on_policy.ppo import learner as ppo
    from rlcore.config.values import plain
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

    action = ActionSpec("Discrete", (), "int64", (4,), (0,))
    spec = EnvSpec("lake", {"state": ArraySpec((), "int64", n=16)}, action)
    config = ppo.Config(total_steps=1)
    agent = ppo.Agent(config, spec, "auto", torch.Generator().manual_seed(0))
    description = {"algo": plain(config), "distribution": "auto", "spec": spec.to_json()}
    policy = LoadedPolicy(description, agent.state_dict())
    assert policy.predict(3).ndim == 0  # one observation, one action: not a batch of one
    assert policy.predict(np.array([3, 15])).shape == (2,)
    for wrong in (16, -1, 1.5):
        with pytest.raises(UserError, match="whole numbers from 0 to 15"):
            policy.predict(wrong)


class Pixels(torch.nn.Module):
    """Agent without keys that checks the types of its observations."""

    def __init__(self, config: Any, spec: Any, distribution: str, rng: torch.Generator) -> None:
        super().__init__()

    def initial(self, batch_size: int) -> tuple[()]:
        return ()

    def act(self, carry: Any, obs: Any, is_first: Any, rng: Any, greedy: bool) -> Any:
        assert {key: value.dtype for key, value in obs.items()} == {"rgb": torch.uint8, "speed": torch.float32}
        return (), obs["rgb"].flatten(1).sum(-1, dtype=torch.int64, keepdim=True), {}

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, 0]


def test_predict_passes_images_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlcore.algorithms import ALGORITHMS
    from rlcore.algorithms.on_policy.ppo import learner as ppo
    from rlcore.config.values import plain
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

    monkeypatch.setitem(ALGORITHMS, "ppo", SimpleNamespace(Config=ppo.Config, Agent=Pixels))
    keys = {"rgb": ArraySpec((3, 2, 2), "uint8"), "speed": ArraySpec((1,), "float32")}
    spec = EnvSpec("screen", keys, ActionSpec("Discrete", (), "int64", (9,), (0,)))
    policy = LoadedPolicy(
        {"algo": plain(ppo.Config(total_steps=1)), "distribution": "auto", "spec": spec.to_json()}, {}
    )
    image = np.full((3, 2, 2), 250)  # JSON has no uint8
    assert policy.predict({"rgb": image, "speed": [0.5]}) == 3000
    with pytest.raises(UserError, match="key 'speed' is missing; expected rgb, speed"):
        policy.predict({"rgb": image})
    for wrong in (256, -1, 0.5, float("nan")):
        with pytest.raises(UserError, match="obs 'rgb': expected whole numbers from 0 to 255"):
            policy.predict({"rgb": image * 0 + wrong, "speed": [0.5]})


def test_exchange_of_recurrent_policy_matches_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.registry.playing import example_of
    from flows.registry.upload import mlflow_signature
    from rlcore.algorithms import ALGORITHMS
    from rlcore.config.build import build
    from rlcore.config.values import plain
    from rlcore.evaluation.loaded_policy import LoadedPolicy
    from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
    from tests.probes import q_learning

    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    config = build(q_learning.Config, {"total_steps": 1}, "algo.")
    spec = EnvSpec("way", {"state": ArraySpec((4,), "float32")}, ActionSpec("Discrete", (), "int64", (2,), (0,)))
    agent = q_learning.Agent(config, spec, "auto", torch.Generator().manual_seed(0))
    policy = LoadedPolicy({"algo": plain(config), "distribution": "auto", "spec": spec.to_json()}, agent.state_dict())
    held, carry = policy.initial_carry(3), None
    assert list(held) == ["carry.age.0"] and not held["carry.age.0"].any()
    for opens in ([1, 1, 1], [0, 0, 0], [0, 1, 0]):
        first = np.array(opens, bool)
        answer = policy.exchange({"state": OBS[:3], "is_first": first, **held})
        action, carry = policy.step(OBS[:3], carry, first)
        held = {key: value for key, value in answer.items() if key != "action"}
        assert answer["action"].tolist() == action.tolist()
    assert held["carry.age.0"].tolist() == carry["age"][0].tolist() == [[3], [1], [3]]
    signature = mlflow_signature(policy.signature).to_dict()
    assert list(example_of(policy)) == [part["name"] for part in json.loads(signature["inputs"])]
    assert [part["name"] for part in json.loads(signature["outputs"])] == ["action", "carry.age.0"]
    with pytest.raises(
        UserError, match="'carry.age.0' is missing; this recurrent policy needs the inputs is_first, carry.age.0"
    ):
        policy.exchange({"state": OBS[:3], "is_first": first})
    with pytest.raises(UserError, match=r"'carry.age.0': expected shape \(2, 1\), got \(3, 1\)"):
        policy.exchange({"state": OBS[:2], "is_first": first[:2], **held})
    with pytest.raises(UserError, match=r"is_first: expected one value per observation \(2\), got 3"):
        policy.exchange({"state": OBS[:2], "is_first": first, **held})
    with pytest.raises(UserError, match="'carry.age.0': expected numbers, got nan"):
        policy.exchange({"state": OBS[:3], "is_first": first, "carry.age.0": held["carry.age.0"] + np.nan})
    with pytest.raises(
        UserError, match=r"recurrent state \(carry.age.0\).* use action, carry = policy.step\(obs, carry\)"
    ):
        policy.predict(OBS[:3])
    assert policy.step(OBS[:3], carry, [0, 1, 0])[1]["age"][0].tolist() == [[4], [1], [4]]  # 0 and 1 are bools, too


def test_signature_lists_inputs_and_outputs_of_exchange(run: RunDirectory) -> None:
    policy = load_policy(run.path)
    assert [str(column) for column in policy.signature.inputs] == ["state float32 [N, 4]"]
    outputs = ["action int64 [N]", "logprob float32 [N]", "value float32 [N]"]
    assert [str(column) for column in policy.signature.outputs] == outputs
    answer = policy.exchange(OBS)
    given = [f"{name} {part.dtype} [{', '.join(map(str, ('N', *part.shape[1:])))}]" for name, part in answer.items()]
    assert given == outputs
    with torch.no_grad():  # the outputs of the agent itself
        _, action, extras = policy.agent.act((), {"state": torch.from_numpy(OBS)}, torch.ones(3).bool(), None, True)
    assert answer["action"].tolist() == policy.agent.to_env(action).tolist()
    assert all(answer[name].tolist() == extras[name].tolist() for name in ("logprob", "value"))
    assert (answer["logprob"] < 0).all() and len({*answer["value"].tolist()}) == 3
    assert answer["action"].tolist() == policy.predict(OBS).tolist()


def test_load_policy_refuses_folder_without_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no policy; use the path of a run, of a checkpoint"):
        load_policy(tmp_path)


def test_load_policy_refuses_damaged_checkpoint(run: RunDirectory, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    path = checkpoint.resolve(RunDirectory(copy), "latest")
    file = path / "learning/tensors.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"learning/tensors.safetensors has changed since it was written"):
        load_policy(path)
