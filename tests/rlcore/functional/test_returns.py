from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlcore.functional.returns import discounted_scan, discounted_sum, gae, lambda_return


def columns(length: int, seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(length, 3, generator=rng, dtype=torch.float64)  # noqa: E731
    ended = torch.rand(length, 3, generator=rng) < 0.2
    cut = torch.rand(length, 3, generator=rng) < 0.2
    return {
        "reward": draw(),
        "discount": 0.9 * (~ended).double(),
        "value": draw(),
        "next_value": draw(),
        "trace": 0.8 * (~(ended | cut)).double(),
    }


def by_definition(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, trace: Tensor) -> Tensor:
    """Return the double sum of eq. 16: every later δ times the product of all decays up to it."""
    delta = reward + discount * next_value - value
    rows = []
    for t in range(len(reward)):
        weight, total = torch.ones_like(delta[0]), torch.zeros_like(delta[0])
        for later in range(t, len(reward)):
            total = total + weight * delta[later]
            weight = weight * discount[later] * trace[later]
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("method", ["loop", "log_scan"])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 37])
def test_gae_matches_definition(method: str, length: int) -> None:
    inputs = columns(length)
    torch.testing.assert_close(gae(**inputs, method=method), by_definition(**inputs), rtol=0, atol=1e-12)


def test_gae_with_zero_trace_is_td_error() -> None:
    inputs = columns(9) | {"trace": torch.zeros(9, 3, dtype=torch.float64)}
    expected = inputs["reward"] + inputs["discount"] * inputs["next_value"] - inputs["value"]
    torch.testing.assert_close(gae(**inputs), expected, rtol=0, atol=0)


def test_gae_with_unit_trace_is_discounted_return() -> None:
    # Two steps, γ 0.5, rewards 1 and 2, then a value of 8: 2 + 0.5·8 = 6 and 1 + 0.5·6 = 4, for any V in between.
    one = torch.ones(2, 1)
    value = torch.tensor([[3.0], [-7.0]])
    advantage = gae(torch.tensor([[1.0], [2.0]]), 0.5 * one, value, torch.tensor([[-7.0], [8.0]]), one)
    torch.testing.assert_close(advantage + value, torch.tensor([[4.0], [6.0]]))


def test_gae_bootstraps_truncation_but_not_termination() -> None:
    # One step, reward 1, V = 0, next V = 10, γ 0.5: truncated 6, terminated 1. The next step adds 100 to neither.
    reward = torch.tensor([[1.0, 1.0], [100.0, 100.0]])
    discount = torch.tensor([[0.5, 0.0], [0.5, 0.5]])
    trace = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    zero = torch.zeros(2, 2)
    next_value = torch.tensor([[10.0, 10.0], [0.0, 0.0]])
    assert gae(reward, discount, zero, next_value, trace)[0].tolist() == [6.0, 1.0]


def test_gae_and_scans_refuse_broadcasting_shapes() -> None:
    inputs = columns(4)
    for name in inputs:
        with pytest.raises(AssertionError):
            gae(**(inputs | {name: inputs[name][:, :1]}))
    with pytest.raises(AssertionError):
        discounted_sum(torch.zeros(4, 3), torch.zeros(4, 1))
    with pytest.raises(AssertionError):
        discounted_scan(torch.zeros(4, 3), torch.zeros(4, 1))


def test_discounted_scan_leaves_inputs_unchanged() -> None:
    x, decay = torch.ones(5, 2), torch.full((5, 2), 0.5)
    discounted_scan(x, decay)
    assert (x == 1).all() and (decay == 0.5).all()


def by_steps(reward: Tensor, discount: Tensor, next_value: Tensor, lmbda: float) -> Tensor:
    """Return the λ-weighted mean of the 1, 2, ... step returns; the longest has all remaining weight."""
    length, rows = len(reward), []
    for t in range(length):
        total, weight, passed, gained = 0.0, 1.0, torch.ones_like(reward[0]), torch.zeros_like(reward[0])
        for k in range(t, length):
            gained = gained + passed * reward[k]
            passed = passed * discount[k]
            share = weight * (1 - lmbda) if k + 1 < length else weight
            total, weight = total + share * (gained + passed * next_value[k]), weight * lmbda
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("lmbda", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("length", [1, 2, 15])
def test_lambda_return_matches_weighted_n_step_returns(length: int, lmbda: float) -> None:
    inputs = columns(length)
    reward, discount, value = inputs["reward"], inputs["discount"], inputs["next_value"]
    expected = by_steps(reward, discount, value, lmbda)
    torch.testing.assert_close(lambda_return(reward, discount, value, lmbda), expected, rtol=0, atol=1e-12)
