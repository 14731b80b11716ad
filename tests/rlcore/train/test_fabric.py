from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning_fabric
import pytest
import torch

from rlcore.config.groups import FabricConfig
from rlcore.config.learning_half import config_hash
from rlcore.errors import UserError
from rlcore.run_config import build_config
from rlcore.train import fabric, resource_check
from rlcore.train.fabric import make_fabric, set_switches
from tests.runs import values


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("wanted", [True, False])
def test_set_switches_follows_config_for_determinism(wanted: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    set_switches(build_config(values("CartPole-v1", 64, torch_use_deterministic_algorithms=wanted)))
    assert torch.are_deterministic_algorithms_enabled() is wanted
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize(("devices", "given"), [([1], [1]), ("1,0", [1, 0]), (2, 2), ("2", 2), ("auto", 1)])
def test_make_fabric_selects_gpus_of_config(monkeypatch: pytest.MonkeyPatch, devices: Any, given: Any) -> None:
    asked: list[Any] = []
    joined: list[Any] = []

    class Recording:
        def __init__(self, **options: Any) -> None:
            asked.append(options["devices"])
            self.device = torch.device("cuda", 0)

        def launch(self) -> None:
            """Start nothing."""

    monkeypatch.setattr(lightning_fabric, "Fabric", Recording)
    monkeypatch.setattr(resource_check, "gpus", lambda: 2)
    monkeypatch.setattr(fabric, "join", lambda *given: joined.append(given))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("SHEPHERD_RANKS_STORE", "7")
    config = build_config(values("CartPole-v1", 64, fabric__devices=devices, fabric__accelerator="cuda")).fabric
    make_fabric(config)
    assert joined == ([(7, 0, 2, torch.device("cuda", 0))] if config.ranks == 2 else [])
    assert asked == [given] and config.ranks == (len(given) if isinstance(given, list) else given)


@pytest.mark.parametrize(
    ("devices", "accelerator", "there", "sentence"),
    [
        ((2,), "cuda", 2, r"fabric.devices=\[2\]: torch finds 2 GPUs on this machine; valid indices are 0 to 1"),
        (
            (0,),
            "auto",
            0,
            r"fabric.devices=\[0\]: selects GPUs, but torch finds none on this machine; give a number",
        ),
        ((0,), "cuda", 0, "fabric.accelerator=cuda: torch .* finds no CUDA device on this machine"),
    ],
)
def test_check_device_refuses_missing_gpus(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], accelerator: str, there: int, sentence: str
) -> None:
    monkeypatch.setattr(resource_check, "gpus", lambda: there)
    with pytest.raises(UserError, match=sentence):
        resource_check.check_device(FabricConfig(devices=devices, accelerator=accelerator))


def test_config_hash_is_independent_of_gpu_index() -> None:
    one, other, two = (
        config_hash(build_config(values("CartPole-v1", 64, fabric__devices=devices, fabric__accelerator="cuda")))
        for devices in ([0], [1], [0, 1])
    )
    assert one == other != two
