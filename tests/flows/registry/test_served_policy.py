"""HTTP requests to a registered model behind `shepherd serve`."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import flows
from flows.stages.register_model import register_model
from flows.workers.servers import own_login
from rlcore.functional import tree
from rlcore.store.directory import RunDirectory
from tests.flows.synthetic_runs import CARTPOLE, DICT_SPEC, VECTOR, checkpointed_run, evaluations, named
from tests.probes import recurrent
from tests.processes import ROOT, answers, free_port
from tests.retries import wait_for
from tests.soaking import always, heavy

pytestmark = [
    heavy,
    pytest.mark.slow,
    # MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]
IMAGE_SPEC = CARTPOLE | {
    "id": "Camera-v0",
    "obs": {
        "speed": VECTOR | {"shape": [2], "dtype": "float32", "n": None, "start": 0},
        "camera": VECTOR
        | {
            "shape": [40, 40, 3],
            "dtype": "uint8",
            "n": None,
            "start": 0,
            "kind": "image",
            "window": {"frames": 3, "dilation": 1},
        },
    },
}


@dataclass(frozen=True)
class Served:
    url: str
    login: str
    run: RunDirectory


def register_champion(folder: Path, name: str, **settings: Any) -> RunDirectory:
    """Return a run that is registered as champion of model `name`."""
    run = checkpointed_run(folder / "run", name, weights=61, **settings)
    with pytest.MonkeyPatch.context() as patched:
        evaluations(patched, lambda digest, episode: 100.0 + episode % 3)
        register_model(named(run, name))
    return run


@pytest.fixture(scope="module")
def served(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield `shepherd serve` of a champion with observations of shape (4,)."""
    folder = tmp_path_factory.mktemp("array")
    run, port = register_champion(folder, "served"), free_port()
    with open(folder / "serve.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", "serve", "models:/served@champion", "--port", str(port)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for_ping(process, f"http://127.0.0.1:{port}/ping", folder / "serve.log")
        assert "password in" in (folder / "serve.log").read_text()
        assert not psutil.Process(process.pid).children()  # a child process could outlive the server
        yield Served(f"http://127.0.0.1:{port}/invocations", own_login(), run)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def wait_for_ping(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    wait_for(lambda: answers(url) or process.poll() is not None, "an answer", every=0.2)
    assert process.poll() is None, log.read_text()[-3000:]


def ask(served: Served, **body: Any) -> tuple[int, Any]:
    """Return status and content of the response to one request."""
    login = base64.b64encode(served.login.encode()).decode()
    data, header = json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(served.url, data, header), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@always
def test_serve_answers_match_load_policy(served: Served) -> None:
    policy = flows.load_policy(served.run.path)
    obs = np.random.default_rng(3).normal(size=(1000, 4))  # float64, like JSON numbers
    expected = policy.exchange(obs)
    assert 0 < sum(expected["action"]) < 1000 and [*expected] == ["action", "logprob", "value"]
    for rows in (1, 1000):
        status, answer = ask(served, inputs=obs[:rows].tolist())
        assert (status, answer.keys()) == (200, {"predictions"})
        predictions = answer["predictions"]
        assert predictions["action"] == expected["action"][:rows].tolist() and predictions.keys() == expected.keys()
        for name in ("logprob", "value"):
            assert np.allclose(predictions[name], expected[name][:rows], rtol=1e-5)
    assert ask(served, inputs=[[0, 0, 0, 0]])[0] == 200  # integers are accepted too


@always
def test_serve_refuses_request_without_password(served: Served) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(served.url.replace("invocations", "docs"), timeout=60)


def test_serve_samples_actions_if_not_deterministic(served: Served) -> None:
    obs = np.random.default_rng(4).normal(size=(500, 4)).tolist()
    greedy = ask(served, inputs=obs)[1]["predictions"]["action"]
    assert ask(served, inputs=obs, params={"deterministic": True})[1]["predictions"]["action"] == greedy
    assert ask(served, inputs=obs, params={"deterministic": None})[1]["predictions"]["action"] == greedy
    status, sampled = ask(served, inputs=obs, params={"deterministic": False})
    assert status == 200
    assert set(sampled["predictions"]["action"]) == {0, 1}
    assert sampled["predictions"]["action"] != greedy


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[0.1, 0.2, 0.3]], "obs 'state': expected shape (4,) or (N, 4), got (1, 3)"),
        ([[0.1] * 5], "obs 'state': expected shape (4,) or (N, 4), got (1, 5)"),
        ([0.1, 0.2, 0.3, 0.4], "Shape of input (4,) does not match expected shape (-1, 4)."),
    ],
)
def test_serve_answers_wrong_shape_with_400(served: Served, inputs: list[Any], message: str) -> None:
    status, answer = ask(served, inputs=inputs)
    assert (status, answer["message"]) == (400, message)


def test_serve_answers_missing_number_with_400(served: Served) -> None:
    for inputs in ([[0, 0, 0, 0], [0, None, 0, 0]], [[0, 0, 0, 0], [0, float("nan"), 0, 0]]):
        status, answer = ask(served, inputs=inputs)
        assert status == 400
        assert answer["message"] == "obs 'state': expected finite float32 numbers, got nan at [1, 1]"


def test_serve_answers_invalid_request_with_400(served: Served) -> None:
    assert ask(served, observations=[[0, 0, 0, 0]])[0] == 400
    assert ask(served, inputs=[[0, 0, 0, 0]], params={"deterministic": "perhaps"})[0] == 400


def test_serve_accepts_dict_observations(home: Path, tmp_path: Path) -> None:
    from mlflow.pyfunc import load_model, scoring_server
    from starlette.testclient import TestClient

    run, rng = register_champion(tmp_path, "rooms", spec=DICT_SPEC), np.random.default_rng(5)
    server = TestClient(scoring_server.init(load_model("models:/rooms@champion")))
    obs = {"position": rng.normal(size=(8, 2, 3)), "room": rng.integers(1, 6, size=8)}
    inputs = {key: value.tolist() for key, value in obs.items()}
    answer = server.post("/invocations", json={"inputs": inputs})
    expected = flows.load_policy(run.path).predict(obs).tolist()
    assert (answer.status_code, answer.json()["predictions"]["action"]) == (200, expected)
    wrong = server.post("/invocations", json={"inputs": inputs | {"room": [9] * 8}})
    assert wrong.status_code == 400
    assert "obs 'room': expected whole numbers from 1 to 5" in wrong.json()["message"]
    assert "Traceback" not in wrong.text


def test_serve_accepts_images_and_returns_frame_stack(home: Path, tmp_path: Path) -> None:
    from mlflow.pyfunc import load_model, scoring_server
    from starlette.testclient import TestClient

    policy = flows.load_policy(register_champion(tmp_path, "camera", spec=IMAGE_SPEC).path)
    server, rng = TestClient(scoring_server.init(load_model("models:/camera@champion"))), np.random.default_rng(7)
    outputs, carry = {key: value.tolist() for key, value in policy.initial_carry(2).items()}, None
    for is_first in ([True, True], [False, False], [False, True], [False, False]):
        camera = rng.integers(0, 256, (2, 40, 40, 3), np.uint8)
        obs = {"speed": rng.normal(size=(2, 2)).astype(np.float32), "camera": camera}
        inputs = {key: value.tolist() for key, value in obs.items()} | {"is_first": is_first} | outputs
        response = server.post("/invocations", json={"inputs": inputs})
        assert response.status_code == 200, response.text
        outputs = response.json()["predictions"]
        action, carry = policy.step(obs, carry, np.array(is_first))
        assert outputs.pop("action") == action.tolist()
    past = [np.array(value) for value in outputs.values() if np.shape(value)[2:] == (40, 40, 3)]
    assert len(past) == 1 and (past[0][:, -1] == camera).all()  # the newest frame is unchanged


def test_serve_returns_carry_of_recurrent_policy(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.pyfunc import load_model, scoring_server
    from starlette.testclient import TestClient

    recurrent.use(monkeypatch)
    policy = flows.load_policy(register_champion(tmp_path, "lstm", algo="q_learning").path)
    server = TestClient(scoring_server.init(load_model("models:/lstm@champion")))
    obs = np.random.default_rng(6).normal(size=(4, 2, 4))
    outputs, carry = {key: value.tolist() for key, value in policy.initial_carry(2).items()}, None
    for row, is_first in zip(obs, [[True, True], [False, False], [False, True], [False, False]], strict=True):
        inputs = {"state": row.tolist(), "is_first": is_first} | outputs
        response = server.post("/invocations", json={"inputs": inputs})
        assert response.status_code == 200, response.text
        outputs = response.json()["predictions"]
        action, carry = policy.step(row, carry, np.array(is_first))
        assert outputs.pop("action") == action.tolist()
        # equal text: float32 values are unchanged, and booleans do not become integers
        assert str(outputs) == str({name: part.tolist() for name, part in tree.name_leaves(carry).items()})
    assert outputs["carry.age.0"] == [4, 2] and outputs["carry.odd"] == [False, False]
    assert len(set(np.ravel(outputs["carry.lstm.0"]))) == 2 * recurrent.UNITS
    wrong = server.post("/invocations", json={"inputs": inputs | {"state": obs[0, :1].tolist()}})
    assert wrong.status_code == 400
    assert "is_first: expected one value per observation (1), got 2" in wrong.json()["message"]
    assert "Traceback" not in wrong.text
