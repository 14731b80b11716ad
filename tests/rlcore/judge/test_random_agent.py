from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.functional.noise import Noise
from rlcore.judge.random_agent import RandomAgent
from rlcore.spec import ActionSpec, EnvSpec

INF = float("inf")


def sent(action: ActionSpec, count: int = 20_000, seed: int = 0) -> np.ndarray:
    agent = RandomAgent(EnvSpec("Some-v0", {}, action))
    _, chosen, extras = agent.act((), {}, torch.zeros(count, dtype=torch.bool), Noise(seed, "baseline"))
    assert chosen.shape == (count, action.size) and extras == {}
    return agent.to_env(chosen).numpy()


def test_every_choice_of_every_sub_action_is_equally_likely() -> None:
    actions = sent(ActionSpec("MultiDiscrete", (2,), "int64", nvec=(2, 3), start=(1, -1)))
    for column, values in ((0, [1, 2]), (1, [-1, 0, 1])):
        found, counts = np.unique(actions[:, column], return_counts=True)
        assert found.tolist() == values
        # Five standard errors of a share: below 0.018.
        assert np.abs(counts / 20_000 - 1 / len(values)).max() < 0.018


def test_discrete_actions_have_the_environments_form() -> None:
    actions = sent(ActionSpec("Discrete", (), "int64", nvec=(3,), start=(5,)), 100)
    assert actions.shape == (100,) and set(actions.tolist()) == {5, 6, 7}
    bits = sent(ActionSpec("MultiBinary", (2, 2), "int8", nvec=(2,) * 4, start=(0,) * 4), 100)
    assert bits.shape == (100, 2, 2) and bits.dtype == np.int8 and set(np.unique(bits)) == {0, 1}


def test_a_box_is_filled_evenly_and_open_sides_as_gymnasium_samples_them() -> None:
    low, high = (2.0, -INF, 0.0, -INF), (5.0, INF, INF, 1.0)
    actions = sent(ActionSpec("Box", (4,), "float32", low=low, high=high))
    assert actions.dtype == np.float32
    bounded, free, above, below = actions.T
    assert bounded.min() >= 2 and bounded.max() <= 5 and bounded.mean() == pytest.approx(3.5, abs=0.04)
    assert bounded.std() == pytest.approx(3 / 12**0.5, abs=0.03)
    assert free.mean() == pytest.approx(0, abs=0.04) and free.std() == pytest.approx(1, abs=0.03)
    assert above.min() >= 0 and above.mean() == pytest.approx(1, abs=0.04)
    assert below.max() <= 1 and below.mean() == pytest.approx(0, abs=0.04)


def test_actions_come_from_the_given_stream() -> None:
    action = ActionSpec("Box", (1,), "float32", low=(0.0,), high=(1.0,))
    assert (sent(action, 10, seed=1) == sent(action, 10, seed=1)).all()
    assert (sent(action, 10, seed=1) != sent(action, 10, seed=2)).any()
