"""Fixtures for switches of torch that apply to the whole process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def switches_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore precision of products and switches of convolutions after a test."""
    precision = torch.get_float32_matmul_precision()
    for name in ("allow_tf32", "deterministic"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    yield
    torch.set_float32_matmul_precision(precision)
