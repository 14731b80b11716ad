"""Dreams: which rows are sequences, and that a perfect model predicts all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_keys import WORLD
from rlcore.errors import UserError
from rlcore.evaluation.dream import LENGTH, SEEN, SEQUENCES, cut, dream, look
from rlcore.evaluation.loaded_world import ModelPrediction
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store import checkpoint
from tests.flows.synthetic_runs import checkpointed_run
from tests.soaking import heavy

pytestmark = heavy

SPEC = EnvSpec(
    "Line-v0", {"state": ArraySpec((1,), "float32")}, ActionSpec("Box", (1,), "float32", low=(-1,), high=(1,))
)


class Line:
    """Perfect model of x' = x + a with the state x; the reward that arrives with x is 2x."""

    spec = SPEC

    def __init__(self) -> None:
        self.observed = 0

    def observe(self, obs: dict[str, np.ndarray], action: np.ndarray) -> ModelState:
        self.observed += 1
        x = torch.from_numpy(obs["state"])
        return ModelState(x, torch.zeros_like(x))

    def imagine(self, state: ModelState, action: Any = None, *, steps: int = 0) -> tuple[ModelState, np.ndarray]:
        """Return the cumulative sum of the given actions; the model's own actions are all 1."""
        moves = torch.ones(steps, *state.deter.shape) if action is None else torch.from_numpy(action)
        x = state.deter + moves.cumsum(0)
        return ModelState(x, torch.zeros_like(x)), moves.numpy()

    def disagree(self, state: ModelState, action: np.ndarray) -> np.ndarray:
        """Return x + a."""
        return (state.deter.numpy() + action)[..., 0]

    def decode(self, state: ModelState) -> ModelPrediction:
        x = state.deter.numpy()
        return ModelPrediction({"state": x}, 2 * x[..., 0], np.ones_like(x[..., 0]), 10 * x[..., 0])


def make_rows(lengths: list[list[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Return rows [T, B] of episodes with the given lengths per environment, aligned as in rlcore/types.py."""
    rng, total = np.random.default_rng(seed), sum(lengths[0])
    action = rng.uniform(-1, 1, (total, len(lengths), 1)).astype(np.float32)
    rows: dict[str, Any] = {"obs/state": np.zeros_like(action), "action": action}
    rows |= {name: np.zeros(action.shape[:2], bool) for name in ("is_first", "terminated", "truncated")}
    for k, episodes in enumerate(lengths):
        t = 0
        for index, length in enumerate(episodes):
            x = 100 * k + 1000 * index + np.concatenate([[0], action[t : t + length - 1, k, 0].cumsum()])
            rows["obs/state"][t : t + length, k, 0] = x
            rows["is_first"][t, k] = True
            t += length
            rows["terminated"][t - 1, k] = True
    return rows | {"reward": 2 * rows["obs/state"][..., 0]}


def test_cut_takes_sequences_within_episodes() -> None:
    rows = make_rows([[200], [200], [200], [200], [200], [20, 180]])
    sequences, mask = cut(rows)
    assert sequences["obs/state"].shape == (LENGTH, SEQUENCES, 1)
    # The first episodes of all environments, the shortest one first; the others begin after 1/5 .. 5/5 of 150 rows.
    for i, (k, begin) in enumerate(zip([5, 0, 1, 2, 3, 4], [0, 30, 60, 90, 120, 150], strict=True)):
        length = 20 if k == 5 else LENGTH
        for name in ("obs/state", "action", "reward", "terminated"):
            np.testing.assert_array_equal(sequences[name][:length, i], rows[name][begin : begin + length, k])
        assert mask[:, i].tolist() == [True] * length + [False] * (LENGTH - length)
    assert sequences["terminated"][-1, 5] and sequences["terminated"][19, 0]


def test_cut_takes_all_sequences_from_one_environment() -> None:
    sequences, mask = cut(make_rows([[70, 1, 60]]))
    assert sequences["is_first"][0].tolist() == [True] + [False] * 5  # an episode of one row is skipped
    assert mask.all()
    assert (sequences["obs/state"][0] >= 2000).flatten().tolist() == [False, True] * 3  # in turns


@pytest.mark.parametrize("length", [300, 30, 3])
def test_look_matches_perfect_model_in_every_row(length: int) -> None:
    rows, mask = cut(make_rows([[length]] * 6))
    result = look(line := Line(), rows, mask)  # pyright: ignore[reportArgumentType]
    assert line.observed == 1
    assert mask.sum() == min(length, LENGTH) * SEQUENCES
    truth, model = result.truth.obs["state"], result.model.obs["state"]
    np.testing.assert_allclose(truth[mask], model[mask], atol=1e-4)
    np.testing.assert_allclose(result.truth.reward[mask], result.model.reward[mask], atol=1e-4)
    assert result.truth.continues is not None
    # the last row of an episode is included with a whole episode, or in a sequence at its end
    ends = {300: 1, 30: SEQUENCES, 3: SEQUENCES}[length]
    assert (result.truth.continues[mask] == 0).sum() == ends
    # the policy's own dream continues from the last observed row, with its own actions
    begin = truth[min(length, SEEN) - 1, :, 0]
    np.testing.assert_allclose(result.own.reward, 2 * (begin + np.arange(LENGTH - SEEN + 1)[:, None]), rtol=1e-5)
    assert result.own.value is not None and result.own.value.shape == (LENGTH - SEEN + 1, SEQUENCES)
    disagreement = rows["obs/state"][..., 0] + rows["action"][..., 0]
    if length < LENGTH:
        disagreement[length - 1 :] = np.nan  # the last row of the episode, and the padding, which repeats it
    else:
        disagreement[-1, -1] = np.nan  # only the last sequence reaches the end of its episode
    np.testing.assert_array_equal(result.disagreement, disagreement)


@pytest.mark.parametrize(
    "algo", [name for name, result in ALGORITHMS.items() if WORLD in result.Config.exported_components]
)
def test_dream_plays_episodes_of_run_repeatably(algo: str, tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "dreamer", weights=4, algo=algo)
    progress: list[tuple[int, int]] = []
    result = dream(run, checkpoint.resolve(run, "latest"), lambda done, total: progress.append((done, total)))
    assert result.truth.obs["state"].shape == result.model.obs["state"].shape == (LENGTH, SEQUENCES, 4)
    assert (
        result.truth.reward[1:][result.there[1:]] == 1
    ).all()  # the reward of CartPole for every row except the first of an episode
    assert progress[0] == (0, SEQUENCES) and progress[-1][0] >= SEQUENCES
    again = dream(run, checkpoint.resolve(run, "latest"))
    np.testing.assert_array_equal(result.model.reward, again.model.reward)
    np.testing.assert_array_equal(result.truth.obs["state"], again.truth.obs["state"])


def test_dream_truncates_long_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlcore.evaluation import dream as module

    run = checkpointed_run(tmp_path / "run", "dreamer", weights=4, algo="dreamer_v3")
    monkeypatch.setattr(module, "ROWS", 7)
    result = dream(run, checkpoint.resolve(run, "latest"))
    assert result.there.sum(0).tolist() == [7] * SEQUENCES
    assert result.truth.continues is not None and result.truth.continues[:7].all()


def test_dream_refuses_run_without_world_model(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "ppo", weights=1)
    with pytest.raises(UserError, match="algo.name=ppo: has no world model") as progress:
        dream(run, checkpoint.resolve(run, "latest"))
    assert "\n" not in str(progress.value)
