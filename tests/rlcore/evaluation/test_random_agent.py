from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.noise import Noise
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

INF = float("inf")


def sample_actions(action: ActionSpec, count: int = 20_000, seed: int = 0) -> np.ndarray:
    agent = RandomAgent(EnvSpec("Some-v0", {}, action))
    _, chosen, extras = agent.act((), {}, torch.zeros(count, dtype=torch.bool), Noise(seed, "baseline"))
    assert chosen.shape == (count, action.size) and extras == {}
    return agent.to_env(chosen).numpy()


def test_random_agent_samples_discrete_actions_uniformly() -> None:
    actions = sample_actions(ActionSpec("MultiDiscrete", (2,), "int64", nvec=(2, 3), start=(1, -1)))
    for column, values in ((0, [1, 2]), (1, [-1, 0, 1])):
        found, counts = np.unique(actions[:, column], return_counts=True)
        assert found.tolist() == values
        # Five standard errors of a share: below 0.018.
        assert np.abs(counts / 20_000 - 1 / len(values)).max() < 0.018


def test_random_agent_sends_actions_in_environment_form() -> None:
    actions = sample_actions(ActionSpec("Discrete", (), "int64", nvec=(3,), start=(5,)), 100)
    assert actions.shape == (100,) and set(actions.tolist()) == {5, 6, 7}
    bits = sample_actions(ActionSpec("MultiBinary", (2, 2), "int8", nvec=(2,) * 4, start=(0,) * 4), 100)
    assert bits.shape == (100, 2, 2) and bits.dtype == np.int8 and set(np.unique(bits)) == {0, 1}


def test_random_agent_samples_box_like_gymnasium() -> None:
    low, high = (2.0, -INF, 0.0, -INF), (5.0, INF, INF, 1.0)
    actions = sample_actions(ActionSpec("Box", (4,), "float32", low=low, high=high))
    assert actions.dtype == np.float32
    bounded, free, above, below = actions.T
    assert bounded.min() >= 2 and bounded.max() <= 5 and bounded.mean() == pytest.approx(3.5, abs=0.04)
    assert bounded.std() == pytest.approx(3 / 12**0.5, abs=0.03)
    assert free.mean() == pytest.approx(0, abs=0.04) and free.std() == pytest.approx(1, abs=0.03)
    assert above.min() >= 0 and above.mean() == pytest.approx(1, abs=0.04)
    assert below.max() <= 1 and below.mean() == pytest.approx(0, abs=0.04)


def test_random_agent_actions_depend_on_noise_seed() -> None:
    action = ActionSpec("Box", (1,), "float32", low=(0.0,), high=(1.0,))
    assert (sample_actions(action, 10, seed=1) == sample_actions(action, 10, seed=1)).all()
    assert (sample_actions(action, 10, seed=1) != sample_actions(action, 10, seed=2)).any()


MASKED = EnvSpec(
    "Some-v0",
    {"action_mask": ArraySpec((2,), "int8", kind="mask"), "mask_b": ArraySpec((3,), "bool", kind="mask")},
    ActionSpec("MultiDiscrete", (2,), "int64", nvec=(2, 3), start=(0, 5)),
)


def test_random_agent_samples_allowed_actions_uniformly() -> None:
    agent, count = RandomAgent(MASKED), 20_000
    first, second = torch.tensor([0, 1], dtype=torch.int8), torch.tensor([True, False, True])
    obs = {"action_mask": first.expand(count, 2), "mask_b": second.expand(count, 3)}
    chosen = agent.act((), obs, torch.zeros(count, dtype=torch.bool), Noise(0, "baseline"))[1]
    assert chosen[:, 0].unique().tolist() == [1] and chosen[:, 1].unique().tolist() == [0, 2]
    # Five standard errors of a share: below 0.018.
    assert abs((chosen[:, 1] == 0).double().mean() - 0.5) < 0.018
    assert agent.to_env(chosen)[:, 1].unique().tolist() == [5, 7]


def test_random_agent_uses_mask_of_each_row() -> None:
    agent = RandomAgent(MASKED)
    obs = {
        "action_mask": torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.int8),
        "mask_b": torch.tensor([[False, True, False], [False, False, True], [False, False, False]]),
    }
    rng = Noise(0, "baseline")
    actions = torch.stack([agent.act((), obs, torch.zeros(3, dtype=torch.bool), rng)[1] for _ in range(100)])
    assert (actions[:, 0] == torch.tensor([0, 1])).all() and (actions[:, 1] == torch.tensor([1, 2])).all()
    assert actions[:, 2, 0].unique().tolist() == [0, 1] and actions[:, 2, 1].unique().tolist() == [0, 1, 2]


def test_random_agent_ignores_masks_of_other_size() -> None:
    spec = EnvSpec("Some-v0", {"mask_of_tools": ArraySpec((4,), "bool", kind="mask")}, MASKED.action)
    obs, free = {"mask_of_tools": torch.zeros(100, 4, dtype=torch.bool)}, torch.zeros(100, dtype=torch.bool)
    chosen = [RandomAgent(s).act((), obs, free, Noise(0, "baseline"))[1] for s in (spec, EnvSpec("", {}, spec.action))]
    assert chosen[0].equal(chosen[1])
