"""Recorded updates in batched environments; the CUDA graph itself is replaced by a function that reuses its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.algorithms.on_policy.ppo import learner as module
from rlcore.compiled import cuda_graph
from rlcore.conformance.trainings import bits
from rlcore.data import minibatches
from tests.rlcore.compiled.test_cuda_graph import recordings  # noqa: F401
from tests.rlcore.compiled.test_recorded_rollout import iterate, learned, training
from tests.soaking import heavy


@pytest.fixture(autouse=True)
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw minibatches and stop updates as on a GPU, although the tensors are on the CPU."""
    monkeypatch.setattr(minibatches, "draws_on_device", lambda *_: True)
    monkeypatch.setattr(module, "ends_loop", lambda stop, reads: False)


SCHEDULES = {"anneal_clip_coef": True, "ent_coef_schedule": [[0, 0.1], [400, 0.0]], "total_steps": 600}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", SCHEDULES),
    "ppo with a KL stop": ("ppo", {"target_kl": 1e-4}),
    "recurrent ppo": ("ppo_recurrent", {"target_kl": 1e-4}),
    "ppo in order": ("ppo", {"shuffle": False, "accumulate_minibatches": None, "advantage_scope": "rollout"}),
    "ppo with statistics of the rollout": ("ppo", {"reward_scale": "rollout", "target_kl": 1e-4}),
}


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == "ppo" else heavy) for c in CASES])
def test_recorded_updates_equal_eager_ones_and_resume(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Any],  # noqa: F811
) -> None:
    algo, settings = CASES[case]
    eager, whole, first, second = (training(algo, n > 0, monkeypatch, **settings) for n in range(4))
    iterate(eager, 4)
    iterate(whole, 4)
    path = iterate(first, 2).save(tmp_path)
    iterate(second.load(path), 2)
    assert len(recordings) == 3 * 2  # one of the rollout and one of the update, in each recorded training
    assert whole.learner.all_steps.recorded.built and not eager.learner.step.compiled
    assert bits(second) == bits(whole)
    assert learned(whole) == learned(eager)
    assert whole.learner.updates == eager.learner.updates
    assert (eager.learner.updates < 4 * 8) == ("target_kl" in settings or "accumulate_minibatches" in settings)


def test_update_with_too_many_operations_records_each_step(
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Any],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cuda_graph, "MOST", 100)
    eager, recorded = (iterate(training("ppo", use, monkeypatch), 2) for use in (False, True))
    assert len(recordings) == 2 and recorded.learner.step.execution.code.built  # the rollout and the gradient step
    assert recorded.learner.all_steps.recorded is None and "it has more than 100 operations" in caplog.text
    assert learned(recorded) == learned(eager)
