from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rlcore.run_config import build_config
from rlcore.train.fabric import set_switches
from tests.runs import values


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("wanted", [True, False])
def test_the_switch_for_determinism_is_what_the_config_says_whatever_it_was(wanted: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    set_switches(build_config(values("CartPole-v1", 64, torch_use_deterministic_algorithms=wanted)))
    assert torch.are_deterministic_algorithms_enabled() is wanted
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
