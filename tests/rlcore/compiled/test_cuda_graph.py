"""Recorded gradient steps; the CUDA graph itself is replaced by a function that reuses its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms import ALGORITHMS
from rlcore.compiled import cuda_graph
from rlcore.compiled.whole_step import Results
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import find_all
from rlcore.errors import UserError
from rlcore.functional.noise import Noise
from rlcore.optim.step import Step
from rlcore.store.checkpoint import nested_state
from rlcore.train.trainer import Trainer
from tests.rlcore.optim.test_optimizer import context
from tests.rlcore.optim.test_step import Two
from tests.runs import SMALL_DREAMER, SMALL_DREAMER_V1, SMALL_DREAMER_V2
from tests.soaking import heavy

pytestmark = heavy


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Results]:
    """Return the outputs of each recording; a replay calls the function again and copies into them."""
    made: list[Results] = []

    def record(function: Callable[[], Results], device: torch.device) -> cuda_graph.Recorded:
        assert device.type == "cpu"
        found = function()
        made.append(found)

        def replay() -> None:
            for part, values in zip(found, function(), strict=True):
                for name, value in values.items():
                    part[name].copy_(value)

        return replay, found

    monkeypatch.setattr(cuda_graph, "record", record)
    return made


class Recorded(Two):
    """`Two` with a recorded step."""

    def __init__(self) -> None:
        super().__init__(False)
        given = context(compiled=True)
        assert given.compiler is not None
        given = dataclasses.replace(given, compiler=dataclasses.replace(given.compiler, records=True))
        self.step = Step(self.gradient_step, [self.first, self.second], [self.target], given)


def memory(two: Two) -> list[int]:
    tensors = [*two.critic.parameters(), *two.target.module.parameters(), two.critic.seen, two.target.module.seen]
    rules = [t for o in (two.first, two.second) for t in (*o.slots.values(), o.count, o.lr)]
    return [tensor.data_ptr() for tensor in (*tensors, *rules)]


def test_recorded_step_equals_eager_step_exactly(recordings: list[Any]) -> None:
    eager, recorded = Two(False), Recorded()
    rngs, places = [Noise(0, "probe") for _ in range(2)], memory(recorded)
    generator = torch.Generator().manual_seed(0)
    logged: list[dict[str, Tensor]] = []
    passed: list[Tensor] = []
    for n in range(4):
        x, tau = torch.randn(4, 2, generator=generator), torch.tensor(0.0 if n == 1 else 0.5, dtype=torch.float64)
        for two in (eager, recorded):
            two.second.set_lr(0.1 / (n + 1))
        if n == 2:  # a buffer that an update replaced is read
            for two in (eager, recorded):
                two.critic.seen = torch.tensor(5.0)
        metrics = [two.step({"x": x}, tau, rng=rng) for two, rng in zip((eager, recorded), rngs, strict=True)]
        logged.append(metrics[1])
        passed.append(recorded.step.aux["found"])
        assert torch.equal(passed[n], eager.step.aux["found"])
        assert all(torch.equal(metrics[1][name], value) for name, value in metrics[0].items())
        assert all(torch.equal(recorded.state()[name], value) for name, value in eager.state().items()), n
    assert memory(recorded) == places and len(recordings) == 1 and recorded.step.compiled
    assert rngs[0].state_dict() == rngs[1].state_dict()
    # Metrics and aux are not overwritten by later steps.
    assert len({found["error"].item() for found in logged}) == len({found[0].item() for found in passed}) == 4


def test_recorded_step_refuses_other_input_shapes() -> None:
    two = Recorded()
    two.step({"x": torch.ones(4, 2)}, 0.5, rng=Noise(0, "probe"))
    with pytest.raises(AssertionError, match="other shapes"):
        two.step({"x": torch.ones(3, 2)}, 0.5, rng=Noise(0, "probe"))


class Branching(Recorded):
    def of_encoder(self, x: Tensor, found: Tensor) -> Any:
        total, weight, metrics = super().of_encoder(x, found)
        return (total * 2 if total > 0 else total), weight, metrics


def test_step_that_reads_device_value_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    recorded, x = Branching(), torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    recorded.step({"x": x}, 0.5, rng=Noise(0, "probe"))
    (line,) = caplog.messages
    assert "is not compiled and runs as eager code: the operation aten._local_scalar_dense" in line
    assert not recorded.step.compiled and recorded.second.count == 1 and recorded.first.count == 1
    began, later = Recorded(), Branching()
    began.step({"x": x}, 0.5, rng=Noise(0, "probe"))
    later.step.load_state_dict(began.step.state_dict())
    with pytest.raises(UserError, match="began with gradient steps recorded as a CUDA graph"):
        later.step({"x": x}, 0.5, rng=Noise(0, "probe"))


def test_watch_refuses_copies_to_host_and_too_many_operations() -> None:
    value = torch.ones(2, device="meta")
    with cuda_graph.Watch(value.device) as watch, pytest.raises(RuntimeError, match="_to_copy.* waits for a value"):
        value.to("cpu")
    assert watch.operations == 1
    with cuda_graph.Watch(value.device, most=2), pytest.raises(RuntimeError, match="more than 2 operations"):
        value + 1 + 1 + 1


def training(algo: str, recorded: bool, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Trainer:
    from rlcore.train import trainer as module

    made = module.Compiler
    monkeypatch.setattr(module, "Compiler", lambda *a, **more: made(*a, **(more | {"records": True})))
    sac = algo.startswith("sac")
    values = {"total_steps": 10_000, ("hidden_size" if sac else "dense_units"): 8} | settings
    env = EnvConfig(id="Pendulum-v1" if sac else "CartPole-v1", num_envs=3, max_episode_steps=7)
    return Trainer(RunConfig(algo=build(ALGORITHMS[algo].Config, values, "algo."), env=env, seed=0), compiled=recorded)


# The loop over time, imagination and three optimizers are in one recording.
DREAMER = {"per_rank_batch_size": 2, "per_rank_sequence_length": 4, "horizon": 3, "learning_starts": 6}
DREAMER |= {"per_rank_pretrain_steps": 0, "replay_ratio": 0.4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"rollout_steps": 8, "per_rank_batch_size": 8, "normalize_obs": True}),
    "a step that is not taken": ("ppo", {"rollout_steps": 8, "per_rank_batch_size": 8, "target_kl": 1e-9}),
    "a2c": ("a2c", {"rollout_steps": 5}),
    "sac": ("sac", {"learning_starts": 6, "per_rank_batch_size": 4}),
    # Three recordings; the last trains an encoder whose parameters are stored with those of the critics.
    "sac_ae": ("sac_ae", {"learning_starts": 6, "per_rank_pretrain_steps": 1, "per_rank_batch_size": 4}),
    "dreamer_v1": ("dreamer_v1", DREAMER | SMALL_DREAMER_V1),
    "dreamer_v2": ("dreamer_v2", DREAMER | SMALL_DREAMER_V2),
    "dreamer_v3": ("dreamer_v3", DREAMER | SMALL_DREAMER),
}


@pytest.mark.parametrize("case", CASES)
def test_recorded_training_resumes_to_same_bits(
    case: str, monkeypatch: pytest.MonkeyPatch, recordings: list[Any]
) -> None:
    algo, settings = CASES[case]
    eager, whole, first, second = (training(algo, n > 0, monkeypatch, **settings) for n in range(4))
    for each, iterations in ((eager, 6), (whole, 6), (first, 4)):
        for _ in range(iterations):
            each.collect()
            each.update()
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.collect()
        second.update()
    assert len(recordings) == 3 * len(find_all(whole.learner, Step)) and whole.learner.updates
    one, other, third = (nested_state.encode(each.learner.state_dict()["agent"]) for each in (eager, whole, second))
    assert one == other == third
