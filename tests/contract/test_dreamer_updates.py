"""Dreamers take as many gradient steps as SheepRL 0.8.4's, by its own schedule and in its own runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from rlcore.algorithms.dreamer.learner import memory_and_plan
from rlcore.train.trainer import Trainer
from rlcore.types import Context, SingleProcess
from tests.flows.config.dreamer_leaves import SPEC
from tests.learning.assembly import fabric
from tests.soaking import always, heavy

pytestmark = heavy

MADE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "dreamer_updates.json").read_text())


class First(SingleProcess):
    """The first of so many ranks."""

    def __init__(self, size: int) -> None:
        self.size = size


@always
@pytest.mark.parametrize("preset", MADE["planned"])
def test_a_preset_owes_as_many_as_theirs_all_the_way(preset: str) -> None:
    one = compose([f"exp={preset}"])[0]
    for ranks, places in MADE["planned"][preset].items():
        config = dataclasses.replace(one, fabric=dataclasses.replace(one.fabric, devices=int(ranks)))
        context = Context(config, SPEC, fabric(), First(int(ranks)), config.env.num_envs)
        memory, _ = memory_and_plan(context)
        assert [[steps, memory.count_batches(steps)] for steps, _ in places] == places
        assert memory.count_batches(places[0][0] - config.width) == 0  # none before theirs
        assert places[-1][0] == config.algo.budget(config.width)
    if preset.endswith("_benchmarks"):
        assert MADE["planned"][preset]["1"][-1] == [16_384, 960]


@pytest.mark.slow
@pytest.mark.parametrize("preset", MADE["done"])
def test_a_run_takes_as_many_as_theirs(preset: str) -> None:
    words = [f"algo.{key}={value}" for key, value in MADE["done"][preset]["algo"].items()]
    # Of numbers and of one sequence: smaller steps than theirs, as many.
    words += ["algo.cnn_keys.encoder=[]", "algo.mlp_keys.encoder=[state]", "algo.per_rank_batch_size=1"]
    words += ["env=dummy", "env.id=discrete_dummy", "buffer.size=200"]
    training = Trainer(compose([f"exp={preset}", *words])[0], compiled=False)
    assert len(list(training)) == training.config.algo.total_steps
    assert training.learner.updates == MADE["done"][preset]["gradient_steps"]
