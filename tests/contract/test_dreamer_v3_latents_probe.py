"""A Dreamer V3 with stored model states, another cell and adaptive clipping (tests/probes/dreamer_v3_latents.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.rssm import RSSM, ModelState
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.train.trainer import Trainer
from rlcore.types import Batch
from tests.contract.test_registry import SETTINGS
from tests.probes import dreamer_v3_latents
from tests.probes.dreamer_v3_latents import BLOCKS, BlockGRU
from tests.soaking import heavy

NAME = "dreamer_v3_latents"


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setitem(ALGORITHMS, NAME, dreamer_v3_latents)
    settings = build(dreamer_v3_latents.Config, SETTINGS["dreamer_v3"] | {"name": NAME}, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


def draw_batches(trainer: Trainer, count: int) -> list[Batch]:
    """Train until `count` batches were drawn, and return them as they were before the update."""
    found: list[Batch] = []
    update = trainer.learner.update

    def watch(batch: Batch, rng: np.random.Generator) -> Any:
        found.append(batch)
        return update(batch, rng)

    with mock.patch.object(trainer.learner, "update", watch):
        while len(found) < count:
            trainer.collect()
            trainer.update()
    return found


@torch.no_grad()
def test_block_gru_equals_gru_with_block_diagonal_weights() -> None:
    rng = torch.Generator().manual_seed(0)
    cell, x, h = BlockGRU(5, 8, None, rng), torch.randn(3, 5, generator=rng), torch.randn(3, 8, generator=rng)
    weight, bias = cell.of_input.weight.numpy(), cell.of_input.bias.numpy()
    gates = (x.numpy() @ weight.T + bias).reshape(3, BLOCKS, 3, 2)  # per block: reset, candidate, update
    for gate in range(3):
        dense = torch.block_diag(*cell.of_state[:, :, 2 * gate : 2 * gate + 2]).numpy()  # [8, 8]
        gates[:, :, gate] += (h.numpy() @ dense).reshape(3, BLOCKS, 2)
    reset, candidate, update = (gates[:, :, gate].reshape(3, 8) for gate in range(3))
    update, candidate = 1 / (1 + np.exp(1 - update)), np.tanh(candidate / (1 + np.exp(-reset)))
    np.testing.assert_allclose(cell(x, h), update * candidate + (1 - update) * h.numpy(), rtol=1e-4, atol=1e-6)


def test_learner_starts_from_stored_states_and_writes_back_new_ones(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new states are those that `obs_step` infers row by row, starting from the stored state of the first row."""
    learner: Any = (trainer := Trainer(config, compiled=False)).learner
    world, rssm = learner.agent.world, learner.agent.world.rssm
    batch = draw_batches(trainer, 1)[0]
    rows, sequences = batch.steps.reward.shape
    assert rows == config.algo.per_rank_sequence_length + 1
    batch.steps.is_first[4, 0] = True  # the stored state is not used there
    monkeypatch.setattr(RSSM, "noise", lambda self, rng, *lead: torch.full((*lead, self.latent.variables), 0.5))
    extras = batch.steps.extras = {
        name: torch.randn(rows, sequences, size, generator=torch.Generator().manual_seed(size))
        for name, size in zip(ModelState._fields, rssm.sizes, strict=True)
    }
    states = [ModelState(extras["deter"][0], extras["stoch"][0])]
    action = torch.eye(2)[batch.steps.action[..., 0]]
    with torch.no_grad():
        features = world.encoder(world.encoder.preprocess(batch.steps.obs, 2))
        for t in range(1, rows):
            noise = rssm.noise(None, sequences)
            states.append(rssm.obs_step(features[t], action[t - 1], batch.steps.is_first[t], noise, states[-1]))
    written: dict[str, Any] = {}
    batch.write_back = written.update
    learner.update(batch, np.random.default_rng(0))
    for name in ModelState._fields:
        torch.testing.assert_close(written[name], torch.stack([getattr(state, name) for state in states]))


def test_update_logs_a_metric_that_has_the_name_of_an_extra(config: RunConfig) -> None:
    trainer = Trainer(config, compiled=False)
    batch = draw_batches(trainer, 1)[0]
    written: dict[str, Any] = {}
    batch.write_back = written.update
    with mock.patch.object(trainer.learner, "train_modules", lambda *inputs: {"deter": torch.tensor(7.0)}):
        metrics = trainer.learner.update(batch, np.random.default_rng(0))
    assert metrics["deter"] == 7.0
    assert {name: value.ndim for name, value in written.items()} == {"deter": 3, "stoch": 3}


def test_stored_states_change_what_is_learned(config: RunConfig) -> None:
    found = []
    for scale in (1.0, 1.0, 0.0):
        trainer = Trainer(config, compiled=False)
        start = trainer.learner.initial_state  # pyright: ignore[reportAttributeAccessIssue]

        def state(batch: Batch, start: Any = start, scale: float = scale) -> Any:
            return type(start(batch))(*(part * scale for part in start(batch)))

        with mock.patch.object(trainer.learner, "initial_state", state):
            draw_batches(trainer, 3)
        found.append(torch.cat([part.detach().flatten() for part in trainer.learner.agent.parameters()]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@heavy
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_stored_states_pass_conformance(check: Callable[[RunConfig], None], config: RunConfig) -> None:
    if check is not conformance.machine_code_equals_eager:
        check(config)
