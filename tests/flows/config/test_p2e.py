"""Mistakes in configs of Plan2Explore."""

from __future__ import annotations

import pytest

from flows.config.compose import compose
from tests.flows.config.dreamer_leaves import check_refusal

EXPLORE, TUNE = "exp=p2e_dv3_exploration_point_mass", "exp=p2e_dv3_finetuning_point_mass"
SOURCE, ROWS = "checkpoint.exploration_ckpt_path", "buffer.load_from_exploration=true"


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ([EXPLORE, "algo.ensembles.n=1"], ["algo.ensembles.n=1", ">= 2"]),
        ([EXPLORE, "algo.player.actor_type=task"], ["algo.player.actor_type=task", "one of exploration"]),
        ([EXPLORE, "algo.critics_exploration.intrinsic.weight=0"], ["no critic has reward_type=intrinsic", "above 0"]),
        (
            [EXPLORE, "algo.critics_exploration.intrinsic.reward_type=curiosity"],
            ["algo.critics_exploration.intrinsic.reward_type=curiosity", "one of intrinsic, task"],
        ),
        (
            ["exp=p2e_dv3_5_exploration_point_mass", "algo.world_model.recurrent_model.blocks=7"],
            ["recurrent_model.blocks=7", "must divide 64"],
        ),
        ([TUNE, "algo.player.actor_type=player"], ["algo.player.actor_type=player", "one of exploration, task"]),
        ([TUNE, f"{SOURCE}=a", "init_from=b"], [f"{SOURCE}=a", "differs from init_from=b"]),
        ([TUNE, f"{SOURCE}=models:/a/1", ROWS], [ROWS, "models:/a/1 has no replay buffer"]),
        ([TUNE, f"{SOURCE}=a", ROWS, "buffer.load_from=b"], [ROWS, "differs from buffer.load_from=b"]),
        ([TUNE, "buffer.load_from_exploration=2"], ["buffer.load_from_exploration=2", "must be true or false"]),
    ],
    ids=lambda value: value[-1] if value[0].startswith("exp=") else None,
)
def test_config_of_plan2explore_refuses_mistakes(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose(typed), parts)
