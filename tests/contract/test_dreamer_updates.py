"""Dreamers take as many gradient steps as SheepRL 0.8.4, by its schedule and in its recorded runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from rlcore.algorithms.dreamer.sequences import memory_and_plan
from rlcore.train.trainer import Trainer
from rlcore.types import Context, SingleProcess
from tests.flows.config.dreamer_leaves import SPEC
from tests.learning.assembly import fabric
from tests.soaking import always, heavy

pytestmark = heavy

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "dreamer_updates.json").read_text())


class FirstRank(SingleProcess):
    """Rank 0 of `size` ranks."""

    def __init__(self, size: int) -> None:
        self.size = size


@always
@pytest.mark.parametrize("preset", REFERENCE["planned"])
def test_dreamer_preset_update_schedule_matches_sheeprl(preset: str) -> None:
    one = compose([f"exp={preset}"])[0]
    for ranks, points in REFERENCE["planned"][preset].items():
        config = dataclasses.replace(one, fabric=dataclasses.replace(one.fabric, devices=int(ranks)))
        context = Context(config, SPEC, fabric(), FirstRank(int(ranks)), config.env.num_envs)
        memory, _ = memory_and_plan(context)
        assert [[steps, memory.count_batches(steps)] for steps, _ in points] == points
        assert memory.count_batches(points[0][0] - config.width) == 0  # none earlier
        assert points[-1][0] == config.algo.budget(config.width)
    if preset.endswith("_benchmarks"):
        assert REFERENCE["planned"][preset]["1"][-1] == [16_384, 960]


@pytest.mark.slow
@pytest.mark.parametrize("preset", REFERENCE["done"])
def test_dreamer_run_update_count_matches_sheeprl(preset: str) -> None:
    words = [f"algo.{key}={value}" for key, value in REFERENCE["done"][preset]["algo"].items()]
    # Vector observations and batches of one sequence: cheaper steps, but the same number.
    words += ["algo.cnn_keys.encoder=[]", "algo.mlp_keys.encoder=[state]", "algo.per_rank_batch_size=1"]
    words += ["env=dummy", "env.id=discrete_dummy", "buffer.size=200"]
    training = Trainer(compose([f"exp={preset}", *words])[0], compiled=False)
    assert len(list(training)) == training.config.algo.total_steps
    assert training.learner.updates == REFERENCE["done"][preset]["gradient_steps"]
