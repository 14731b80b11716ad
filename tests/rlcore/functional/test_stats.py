from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.functional.stats import RunningMoments, mean_where, standardize, weighted_std


def test_standardize_counted_rows_have_unit_std() -> None:
    rng = torch.Generator().manual_seed(0)
    x, weight = 5 + 3 * torch.randn(40, generator=rng).double(), torch.ones(40).double()
    weight[30:] = 0
    x[30:] = 1e6
    kept = standardize(x, weight)[:30]
    assert kept.mean().item() == pytest.approx(0, abs=1e-12)
    assert kept.std(unbiased=True).item() == pytest.approx(1, abs=1e-7)


def test_standardize_returns_single_counted_row_unchanged() -> None:
    assert standardize(torch.tensor([7.0, 3.0]), torch.tensor([1.0, 0.0]))[0].item() == 7.0


def test_standardize_of_equal_rows_is_zero() -> None:
    assert standardize(torch.full((4,), 2.0), torch.ones(4)).tolist() == [0.0] * 4


def test_weighted_std_counts_valid_samples_of_all_ranks() -> None:
    x, weight = torch.tensor([[1.0, 5.0], [100.0, 3.0]]).double(), torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double()
    assert weighted_std(x, weight).item() == pytest.approx(2.0)  # of 1, 5 and 3
    # Two ranks with these samples: squares 4, 4, 0 twice, so the variance is 16 / 5.
    assert weighted_std(x, weight, lambda sums: 2 * sums).item() == pytest.approx(3.2**0.5)


def test_weighted_std_of_one_sample_is_one() -> None:
    assert weighted_std(torch.tensor([7.0, 3.0]), torch.tensor([1.0, 0.0])).item() == 1
    assert weighted_std(torch.tensor([7.0]), torch.tensor([0.0])).item() == 1


def test_standardize_refuses_broadcasting_shapes() -> None:
    with pytest.raises(AssertionError):
        standardize(torch.zeros(4, 1), torch.ones(4))


def test_running_moments_of_pieces_match_whole() -> None:
    rows = np.random.default_rng(0).normal(1e4, 3.0, (500, 2))
    moments = RunningMoments(2)
    for piece in np.split(rows, [1, 7, 7, 250]):
        moments.update(torch.from_numpy(piece))
    np.testing.assert_allclose(moments.mean.numpy(), rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), rows.var(0), rtol=1e-9)
    assert moments.count == 500


def test_running_moments_without_rows_are_identity() -> None:
    moments = RunningMoments(3)
    assert moments.mean.tolist() == [0.0] * 3
    torch.testing.assert_close(moments.scale(), torch.ones(3).double(), rtol=1e-7, atol=0)


def test_running_moments_keep_float64() -> None:
    moments = RunningMoments(1)
    for _ in range(3):
        moments.update(torch.ones(4, 1, dtype=torch.bfloat16))
    assert moments.mean.dtype == moments.variance.dtype == torch.float64


def test_running_moments_continue_from_loaded_state() -> None:
    moments, other = RunningMoments(2), RunningMoments(2)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    other.load_state_dict(moments.state_dict())
    for one in (moments, other):
        one.update(torch.tensor([[10.0, 20.0]]))
    assert torch.equal(moments.mean, other.mean)
    assert torch.equal(moments.variance, other.variance)
    assert moments.count == other.count == 3


@pytest.mark.parametrize("on_gpu", [False, True])
def test_running_moments_ignore_invalid_rows(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, valid = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3 > 0
    rows[~valid] = torch.nan
    monkeypatch.setattr(torch.Tensor, "is_cpu", not on_gpu)
    moments = RunningMoments(2)
    for part, chosen in zip(rows.split(20), valid.split(20), strict=True):
        moments.update(part, valid=chosen)
    kept = rows[valid].double().numpy()
    np.testing.assert_allclose(moments.mean.numpy(), kept.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), kept.var(0), rtol=1e-12)
    moments.update(rows, valid=torch.zeros_like(valid))
    assert moments.count == len(kept) and moments.mean.isfinite().all()


def test_running_moments_load_counts_of_older_checkpoints() -> None:
    moments = RunningMoments(1)
    moments.load_state_dict({"mean": torch.ones(1), "variance": torch.ones(1), "count": 3.0})
    assert moments.count == 3 and moments.mean.dtype == torch.float64


def test_mean_where_counts_only_true_values() -> None:
    values = torch.tensor([1.0, torch.nan, 4.0])
    assert mean_where(values, torch.tensor([True, False, True])) == 2.5
    assert mean_where(values, torch.zeros(3, dtype=torch.bool)) == 0
