"""Served policies of examples/algotrading: nested keys, action masks, windows, a network of a plugin, and an LSTM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flows
from flows.runs.create import new_run
from flows.settings import tracking_uri
from flows.stages.make_env import make_env
from flows.stages.register_model import register_model
from rlcore import plugins
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog
from rlcore.train.run_trainer import RunTrainer
from tests.flows.synthetic_runs import evaluations
from tests.processes import ROOT, answers, free_port
from tests.retries import wait_for
from tests.soaking import always, heavy

pytestmark = [
    heavy,
    pytest.mark.slow,
    # MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]
EXAMPLE = ROOT / "examples/algotrading"
PRESETS = ["ppo_trading", "ppo_trading_window", "ppo_trading_transformer", "ppo_trading_lstm"]
SMALL = ["env.num_envs=8", "algo.rollout_steps=32", "algo.total_steps=512", "algo.compile=false"]
STARTS = {(0, 0), (0, 1), (0, 2), (7, 1), (9, 2)}  # (time step, environment) at which an episode starts
STEPS = 24  # more than the 16 frames of the window
Client = Callable[[dict[str, Any]], tuple[int, Any]]


class Policies(dict[str, LoadedPolicy]):
    """Preset -> policy of a short run, which is trained and registered at the first access.

    The run is the champion of the model with the preset's name.

    Args:
        folder: folder of the runs.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, preset: str) -> LoadedPolicy:
        self[preset] = flows.load_policy(registered(preset, self.folder).path)
        return self[preset]


@pytest.fixture(scope="module")
def policies(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policies]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(EXAMPLE)
        patched.setattr(sys, "path", [*sys.path])
        patched.setattr(sys, "dont_write_bytecode", True)
        patched.setenv("SHEPHERD_SEARCH_PATH", "conf")
        patched.setenv(plugins.VARIABLE, "algotrading")
        evaluations(patched, lambda digest, episode: 100.0 + episode % 3)
        yield Policies(folder)
        sys.modules.pop("algotrading", None)


def registered(preset: str, folder: Path) -> RunDirectory:
    short = [f"algo.per_rank_{name}" for name in ("sequence_length=8", "num_batches=2")] if "lstm" in preset else []
    short = short or ["algo.per_rank_batch_size=64"]
    name = f"model_manager.models.agent.model_name={preset}"
    run = new_run([f"exp={preset}", "plugins=[algotrading]", *SMALL, *short, name, f"run_dir={folder / preset}"])
    make_env(run)
    trainer = RunTrainer(run)
    trainer.advance(lambda facts: None)
    trainer.save()
    trainer.close()
    EventLog(run.events).append("baseline", mean=22.0, std=11.0, ci95=[19.8, 24.2], episodes=100)
    assert "champion" in register_model(run)["aliases"]
    return run


def observations() -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Yield observations of three environments, in the nested form of the environment, and `is_first`."""
    rng = np.random.default_rng(3)
    for t in range(STEPS):
        mask = (rng.random((3, 3)) < 0.6).astype(np.int8)
        mask[range(3), rng.integers(0, 3, 3)] = 1  # at least one action is allowed
        change, holds = (rng.normal(0, scale, (3, 1)).astype(np.float32) for scale in (2.0, 1.0))
        obs = {"market": {"change": change}, "holds": holds, "action_mask": mask}
        yield obs, np.array([(t, env) in STARTS for env in range(3)])


def joined(obs: dict[str, Any]) -> dict[str, Any]:
    return {"market.change": obs["market"]["change"], "holds": obs["holds"], "action_mask": obs["action_mask"]}


def actions_of_server(policy: LoadedPolicy, client: Client) -> list[list[int]]:
    """Actions of a client that returns the carry of each answer with the next request."""
    carry = {name: part.tolist() for name, part in policy.initial_carry(3).items()}
    actions = []
    for obs, is_first in observations():
        inputs = {key: part.tolist() for key, part in joined(obs).items()} | carry
        status, answer = client({"inputs": inputs | ({"is_first": is_first.tolist()} if carry else {})})
        assert status == 200, answer
        predictions = answer["predictions"]
        actions.append(predictions["action"])
        carry = {name: predictions[name] for name in carry}
    return actions


def actions_in_python(policy: LoadedPolicy) -> list[list[int]]:
    carry, actions = None, []
    for obs, is_first in observations():
        action, carry = policy.step(obs, carry, is_first)
        actions.append(action.tolist())
    return actions


@pytest.fixture
def client(request: pytest.FixtureRequest, policies: Policies) -> Client:
    """Client of MLflow's scoring server with the model of `shepherd serve`, in this process."""
    assert policies[request.param]  # registered now, if no other test has used it
    from mlflow.pyfunc import load_model, scoring_server
    from starlette.testclient import TestClient

    from flows.registry.served_model import ServedModel  # imports mlflow.pyfunc, which warns

    app = scoring_server.init(ServedModel(load_model(f"models:/{request.param}@champion")))
    server = TestClient(app)

    def ask(body: dict[str, Any]) -> tuple[int, Any]:
        answer = server.post("/invocations", json=body)
        return answer.status_code, answer.json()

    return ask


@pytest.mark.parametrize(("client", "preset"), [(name, name) for name in PRESETS], indirect=["client"])
def test_served_actions_match_policy_in_python(client: Client, preset: str, policies: Policies) -> None:
    policy = policies[preset]
    expected = actions_in_python(policy)
    assert actions_of_server(policy, client) == expected
    forbidden = [obs["action_mask"][range(3), row] == 0 for (obs, _), row in zip(observations(), expected, strict=True)]
    assert not np.any(forbidden) and {0, 1, 2} == set(np.ravel(expected).tolist())
    assert policy.signature.by_name and bool(policy.signature.carry) == (preset != "ppo_trading")


def test_window_of_served_policy_starts_with_episode(policies: Policies) -> None:
    """The frames of the window are built by hand: newest last, zeros before the start of an episode."""
    policy = policies["ppo_trading_transformer"]
    agent, rows, expected = policy.agent, [], []
    for obs, is_first in observations():
        rows.append((obs["market"]["change"], is_first))
        frames, valid = np.zeros((3, 16, 1), np.float32), np.zeros((3, 16), bool)
        for env in range(3):
            for back, (change, starts) in enumerate(reversed(rows[-16:])):
                frames[env, 15 - back], valid[env, 15 - back] = change[env], True
                if starts[env]:
                    break
        seen = {"market.change": frames, "market.change_valid": valid, "holds": obs["holds"]}
        with torch.no_grad():
            features, _ = agent.model.net({key: torch.from_numpy(part) for key, part in seen.items()})
            logits = torch.nn.functional.linear(features, agent.head.linear.weight, agent.head.linear.bias)
        allowed = torch.from_numpy(obs["action_mask"]) != 0
        expected.append(logits.masked_fill(~allowed, -torch.inf).argmax(1).tolist())
    assert actions_in_python(policy) == expected


BAD = [
    ({"holds": None}, "obs: key 'holds' is missing; expected market.change, holds, action_mask"),
    ({"market.change": [[0.1, 0.2]]}, "obs 'market.change': expected shape (1,) or (N, 1), got (1, 2)"),
    ({"action_mask": [[1, 1]]}, "obs 'action_mask': expected shape (3,) or (N, 3), got (1, 2)"),
    (
        {"action_mask": [[0, 0, 0]]},
        "obs 'action_mask': row 0 of the action mask allows no action; set at least one choice of each sub-action to 1",
    ),
    (
        {"holds": [[0.0], [1.0]]},
        "obs: the keys have different numbers of observations: 'market.change' has 1, 'holds' has 2, 'action_mask' "
        "has 1; pass the same number for all",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[", ".join(change) for change, _ in BAD])
@pytest.mark.parametrize("client", ["ppo_trading"], indirect=True)
def test_bad_request_is_answered_with_one_sentence(client: Client, change: dict[str, Any], message: str) -> None:
    inputs = {"market.change": [[0.1]], "holds": [[0.0]], "action_mask": [[1, 1, 0]]}
    assert client({"inputs": inputs})[0] == 200
    inputs = {key: part for key, part in (inputs | change).items() if part is not None}
    status, answer = client({"inputs": inputs})
    assert (status, answer["message"], "stack_trace" in answer) == (400, message, False)


@pytest.mark.parametrize("client", ["ppo_trading_lstm"], indirect=True)
def test_recurrent_policy_reports_missing_carry(client: Client) -> None:
    inputs = {"market.change": [[0.1]], "holds": [[0.0]], "action_mask": [[1, 1, 0]], "is_first": [True]}
    status, answer = client({"inputs": inputs})
    assert status == 400 and "is missing; this recurrent policy needs the inputs is_first, carry." in answer["message"]


@always
def test_mlflow_serves_policy_of_plugin(policies: Policies, tmp_path: Path) -> None:
    """`mlflow models serve` runs elsewhere, with the code that is stored with the model."""
    preset, port = "ppo_trading_transformer", free_port()
    policy = policies[preset]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", f"models:/{preset}@champion"]
    variables = os.environ | {"PYTHONPATH": "", "MLFLOW_TRACKING_URI": tracking_uri(), plugins.VARIABLE: "algotrading"}
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            [*command, "--env-manager", "local", "--port", str(port)],
            cwd=tmp_path,
            env=variables,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        ping = f"http://127.0.0.1:{port}/ping"
        wait_for(lambda: answers(ping) or server.poll() is not None, "an answer", every=0.2)
        assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]

        def ask(body: dict[str, Any]) -> tuple[int, Any]:
            header = {"Content-Type": "application/json"}
            url = f"http://127.0.0.1:{port}/invocations"
            try:
                request = urllib.request.Request(url, json.dumps(body).encode(), header)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        assert actions_of_server(policy, ask) == actions_in_python(policy)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
