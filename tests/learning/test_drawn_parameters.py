"""An agent that trains with drawn pole lengths balances a pole of a length that it has never seen."""

from __future__ import annotations

from flows.config.compose import compose
from rlcore.train.trainer import Trainer
from tests.soaking import heavy

UNSEEN = 4.0  # half-length of the pole in m; the default is 0.5


def return_at_unseen_length(*overrides: str) -> float:
    preset = ["exp=ppo_batched_cartpole", "seed=1", "algo.total_steps=122_880", "algo.compile=false"]
    trainer = Trainer(compose([*preset, *overrides])[0])
    trainer.run()
    return trainer.evaluate(50, env_config={"length": UNSEEN})["mean"]


@heavy
def test_drawn_lengths_beat_fixed_length_at_unseen_length() -> None:
    fixed = return_at_unseen_length()
    drawn = return_at_unseen_length("env.config.length={uniform: [0.25, 2.5]}")
    assert drawn > 300 > 100 > fixed
