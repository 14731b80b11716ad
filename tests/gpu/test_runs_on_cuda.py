"""Whole runs on a GPU, killed and resumed. Skipped without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.kills.cases import ON_GPU, Case
from tests.kills.sampled import check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")


@pytest.mark.parametrize("case", ON_GPU, ids=str)
def test_killed_run_on_gpu_resumes_to_same_bits(case: Case, tmp_path: Path) -> None:
    check(case.env_id, (case.mode,), tmp_path, case.algo)
