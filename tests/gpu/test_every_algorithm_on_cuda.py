"""Training with every algorithm on a GPU, eager and recorded. Skipped without a GPU."""

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
eager_and_recorded = pytest.mark.parametrize("records", [False, True], ids=["as it is written", "recorded"])


def of_vectors(algo: str, env_id: str) -> Make:
    return lambda records: small(algo, env_id, accelerator="cuda", compile=records)


def of_images(algo: str, buffer: BufferConfig | None = None) -> Make:
    return lambda records: small_of_images(algo, "cuda", buffer, compile=records)


def is_recorded(training: Trainer) -> bool:
    return any(step.compiled for step in find_all(training.learner, Step).values())


def check_resume(make: Make, records: bool) -> None:
    whole, first, second = make(records).run(END), make(records).run(HALF), make(records)
    second.load_state_dict(nested_state.decode(*bits(first)))
    assert bits(second.run(END)) == bits(whole)
    assert is_recorded(whole) == is_recorded(second) == records
    assert all(parameter.device.type == "cuda" for parameter in whole.learner.agent.parameters())


def check_recorded_steps(make: Make) -> None:
    """Compare the first update, before rounding changes an action; without TF32, which has only three digits."""
    eager, recorded = make(False), make(True)
    torch.set_float32_matmul_precision("highest")  # each training sets it from its config
    torch.backends.cudnn.allow_tf32 = False
    for training in (eager, recorded):
        training.run(HALF, stop=has_updated)
    assert is_recorded(recorded) and has_updated(eager)
    assert recorded.metrics[-1].keys() == eager.metrics[-1].keys()
    for name, value in eager.metrics[-1].items():
        assert recorded.metrics[-1][name] == pytest.approx(value, rel=1e-2, abs=1e-3), name


def has_updated(training: Trainer) -> bool:
    return bool(training.metrics)


@every_pair
@eager_and_recorded
def test_training_on_gpu_resumes_to_same_bits(algo: str, env_id: str, records: bool) -> None:
    check_resume(of_vectors(algo, env_id), records)


@every_pair
def test_recorded_training_matches_eager(algo: str, env_id: str) -> None:
    check_recorded_steps(of_vectors(algo, env_id))


@with_images
@eager_and_recorded
def test_image_training_on_gpu_resumes_to_same_bits(algo: str, records: bool) -> None:
    check_resume(of_images(algo), records)


@with_images
def test_recorded_image_training_matches_eager(algo: str) -> None:
    check_recorded_steps(of_images(algo))


@pytest.mark.parametrize("algo", ["crossq", "droq", "simba"])
@pytest.mark.parametrize("on_device", [False, True], ids=["rows on the host", "rows on the GPU"])
def test_sac_variants_resume_with_replay_on_gpu(algo: str, on_device: bool) -> None:
    check_resume(of_images(algo, BufferConfig(on_device=on_device)), records=True)


@pytest.mark.parametrize("prioritize_ends", [False, True])
def test_episode_buffer_on_gpu_resumes_to_same_bits(prioritize_ends: bool) -> None:
    buffer = BufferConfig(type="episode", prioritize_ends=prioritize_ends, on_device=True)
    check_resume(of_images("dreamer_v3", buffer), records=True)
