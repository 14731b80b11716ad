"""Every algorithm's training on a GPU, as it is written and recorded. Skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rlcore.config.groups import BufferConfig
from rlcore.conformance.trainings import bits, find_all
from rlcore.optim.step import Step
from rlcore.store.checkpoint import nested_state
from tests.contract.test_registry import every_pair, small, small_of_images, with_images
from tests.learning.assembly import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")
Make = Callable[[bool], Trainer]
HALF, END = 72, 144
either_way = pytest.mark.parametrize("records", [False, True], ids=["as it is written", "recorded"])


def of_vectors(algo: str, env_id: str) -> Make:
    return lambda records: small(algo, env_id, accelerator="cuda", compile=records)


def of_images(algo: str, buffer: BufferConfig | None = None) -> Make:
    return lambda records: small_of_images(algo, "cuda", buffer, compile=records)


def is_recorded(training: Trainer) -> bool:
    return any(step.compiled for step in find_all(training.learner, Step).values())


def check_that_it_goes_on_to_the_same_bits(make: Make, records: bool) -> None:
    whole, first, second = make(records).run(END), make(records).run(HALF), make(records)
    second.load_state_dict(nested_state.decode(*bits(first)))
    assert bits(second.run(END)) == bits(whole)
    assert is_recorded(whole) == is_recorded(second) == records
    assert all(parameter.device.type == "cuda" for parameter in whole.learner.agent.parameters())


def check_that_recorded_steps_are_those_that_are_written(make: Make) -> None:
    """The first update that learned, before rounding has moved an action; without TF32, of three digits."""
    written, recorded = make(False), make(True)
    torch.set_float32_matmul_precision("highest")  # a training sets it to what its config says
    torch.backends.cudnn.allow_tf32 = False
    for training in (written, recorded):
        training.run(HALF, stop=learned)
    assert is_recorded(recorded) and learned(written)
    assert recorded.metrics[-1].keys() == written.metrics[-1].keys()
    for name, value in written.metrics[-1].items():
        assert recorded.metrics[-1][name] == pytest.approx(value, rel=1e-2, abs=1e-3), name


def learned(training: Trainer) -> bool:
    return bool(training.metrics)


@every_pair
@either_way
def test_a_training_goes_on_to_the_same_bits(algo: str, env_id: str, records: bool) -> None:
    check_that_it_goes_on_to_the_same_bits(of_vectors(algo, env_id), records)


@every_pair
def test_recorded_steps_are_those_that_are_written(algo: str, env_id: str) -> None:
    check_that_recorded_steps_are_those_that_are_written(of_vectors(algo, env_id))


@with_images
@either_way
def test_a_training_on_images_goes_on_to_the_same_bits(algo: str, records: bool) -> None:
    check_that_it_goes_on_to_the_same_bits(of_images(algo), records)


@with_images
def test_recorded_steps_on_images_are_those_that_are_written(algo: str) -> None:
    check_that_recorded_steps_are_those_that_are_written(of_images(algo))


@pytest.mark.parametrize("algo", ["crossq", "droq", "simba"])
@pytest.mark.parametrize("on_device", [False, True], ids=["rows on the host", "rows on the GPU"])
def test_presets_of_sac_learn_from_images_and_rows_that_lie_on_the_gpu(algo: str, on_device: bool) -> None:
    check_that_it_goes_on_to_the_same_bits(of_images(algo, BufferConfig(on_device=on_device)), records=True)


@pytest.mark.parametrize("prioritize_ends", [False, True])
def test_sequences_of_whole_episodes_go_on_to_the_same_bits(prioritize_ends: bool) -> None:
    buffer = BufferConfig(type="episode", prioritize_ends=prioritize_ends, on_device=True)
    check_that_it_goes_on_to_the_same_bits(of_images("dreamer_v3", buffer), records=True)
