"""The result pages of the presets match their figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import benchmarks.validate
from benchmarks import learning_pages
from benchmarks.learning_peers import PRESETS, RETURN, words_of
from benchmarks.validate import (
    CASES,
    MEASURES,
    RESULTS,
    best_in_a_row,
    best_of_training,
    lowest_of_last,
    reconstruction,
)
from flows.config.compose import compose
from rlcore.evaluation.loaded_world import ModelPrediction
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import checkpointed_run
from tests.soaking import heavy


def test_result_pages_match_figures(tmp_path: Path) -> None:
    for file in RESULTS.glob("learning*.json"):
        shutil.copy(file, tmp_path)
    learning_pages.write_pages(tmp_path)
    for name in dict.fromkeys(
        f"{of['algorithm']}.md" for of in json.loads((RESULTS / "learning.json").read_text()).values()
    ):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=heavy if number % 8 else ()) for number, name in enumerate(CASES)]
)
def test_case_config_matches_environment_and_budget_of_figures(name: str) -> None:
    figures = json.loads((RESULTS / "learning.json").read_text())
    config = compose(CASES[name].overrides.split())[0]
    if name in figures:
        assert figures[name]["env"] == config.env.id
        assert figures[name]["gates"][-1]["policy_steps"] == config.algo.total_steps


@pytest.mark.parametrize(("returns", "passes"), [([1, 1, 1, 1, 0], True), ([1, 1, 1, 0, 0], False), ([1, 0], False)])
def test_passes_requires_four_of_five_seeds(returns: list[float], passes: bool) -> None:
    gate = {"of": "greedy", "policy_steps": 1, "at_least": 1.0, "values": returns}
    assert learning_pages.passes({"gates": [gate]}) is passes
    assert learning_pages.passes({"gates": [gate, gate | {"values": [0, 0, 0, 0, 1]}]}) is False


def test_passes_supports_upper_limit_and_time_limit() -> None:
    below = {"of": "greedy", "policy_steps": 1, "at_most": 250.0, "values": [249, 250, 100, 50, 251]}
    assert learning_pages.passes({"gates": [below]})
    assert not learning_pages.passes({"gates": [below | {"at_most": 240.0}]})
    reached = {"gates": [{"of": "greedy", "policy_steps": 1, "at_least": 900.0, "values": [1000] * 5}], "within_s": 60}
    assert learning_pages.passes(reached | {"cpu_s": 59.0})
    assert not learning_pages.passes(reached | {"cpu_s": 61.0})


def test_passes_compares_interquartile_mean() -> None:
    gate = {"of": "greedy", "policy_steps": 1, "iqm_at_least": 3.0, "values": [1.0, 2.0, 6.0, 1.0, 99.0]}
    assert learning_pages.passes({"gates": [gate]})
    assert not learning_pages.passes({"gates": [gate | {"iqm_at_least": 3.1}]})
    assert learning_pages.count_reaching(gate) == 2


def test_measures_have_phrases_and_cases_have_gates() -> None:
    assert MEASURES.keys() == learning_pages.PHRASES.keys()
    for case in CASES.values():
        assert {of for of, _, _ in case.gates(1)} <= MEASURES.keys() and case.gates(1)
    assert CASES["dreamer_v3_crosshair"].gates(6) == [
        ("greedy", 6, {"at_least": 5}),
        ("pictures", 6, {"at_most": 1}),
    ]
    assert CASES["ppo_lunar_lander"].gates(7) == [
        ("greedy", 500_000, {"at_least": 100}),
        ("greedy", 7, {"at_least": 200}),
    ]
    assert CASES["sac_hopper"].gates(7, peer=3000.0) == [("greedy", 7, {"iqm_at_least": 3000.0})]


def test_best_in_a_row_finds_best_ten_episodes() -> None:
    assert best_in_a_row([1.0] * 9) == -np.inf
    assert best_in_a_row([9, *[0] * 10, *range(10), *[0] * 10]) == 4.5
    rng = np.random.default_rng(0)
    returns = list(rng.normal(size=50))
    assert best_in_a_row(returns) == pytest.approx(np.convolve(returns, np.full(10, 0.1), "valid").max())


def test_best_and_lowest_returns_are_read_up_to_step(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "a", 0)
    log = EventLog(run.events)
    for step in range(100, 130):
        log.append("metrics", policy_steps=step, env_steps=step, values={"Rewards/rew_avg": float(step)}, wall_s=1.0)
    for step, mean in ((110, 9.0), (115, 1.0), (120, 5.0), (125, 4.0), (130, 0.0)):
        greedy = {"mean": mean, "std": 0.0, "ci95": [mean, mean], "episodes": 1}
        log.append("evaluation", policy_steps=step, env_steps=step, final=False, greedy=greedy, wall_s=1.0)
    assert best_of_training(run, 119) == np.mean(range(110, 120))
    assert lowest_of_last(run, 125) == 1.0
    assert lowest_of_last(run, 130) == 0.0


@pytest.mark.parametrize("error", [0.0, 3.0, 60.0])
def test_reconstruction_is_error_relative_to_mean_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    pictures = np.random.default_rng(0).integers(80, 160, (7, 2, 4, 4, 3), np.uint8)
    rows: dict[str, Any] = {"obs/rgb": pictures, "action": np.zeros((7, 2), int), "is_first": np.zeros((7, 2), bool)}

    class Model:
        """Reconstructs every image, brighter by a constant."""

        keys = ("rgb",)

        def observe(self, obs: Any, action: Any, is_first: Any) -> Any:
            assert action is rows["action"] and is_first is rows["is_first"]
            return obs["rgb"]

        def decode(self, state: Any) -> ModelPrediction:
            return ModelPrediction({"rgb": (state + error).astype(np.uint8)}, np.zeros(1), None, None)

    def fake_record(model: Model, *_: Any) -> Any:
        return rows

    def fake_load(path: Path, seed: int) -> Model:
        assert int(path.name) == 4096
        return Model()

    run: RunDirectory = checkpointed_run(tmp_path / "run", "a", 0)
    monkeypatch.setattr(benchmarks.validate, "load_world_model", fake_load)
    monkeypatch.setattr(benchmarks.validate, "record", fake_record)
    assert reconstruction(run, 5000) == pytest.approx(error**2 / pictures.astype(float).var((0, 1)).mean())


def test_peer_runs_with_preset_keys_and_returns_are_parsed() -> None:
    config, _ = compose(["exp=dreamer_v3_cartpole"])
    (preset,) = PRESETS
    words = dict(word.split("=", 1) for word in words_of(preset))
    assert words["algo.replay_ratio"] == str(config.algo.replay_ratio)
    assert words["algo.world_model.optimizer.lr"] == "1e-3" and words["buffer.size"] == "6000"
    assert words["algo.mlp_keys.encoder"] == words["algo.mlp_keys.decoder"] == "[vector]"
    assert words["algo.cnn_keys.encoder"] == words["algo.cnn_keys.decoder"] == "[]"
    output = "Rank-0: policy_step=12, reward_env_0=[11.]\nRank-0: policy_step=40, reward_env_0=27.0\n"
    assert [float(value) for _, value in RETURN.findall(output)] == [11, 27]
