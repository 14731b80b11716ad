"""Exact resume of environments: if a restored environment continues identically, and the cost to save and restore it.

    python -m benchmarks.suites     # writes the table in docs/exactness.md; takes minutes; needs all suites' packages

Each environment is tested with the test of the stage make-env, which determines how exactly its state can be restored
(its exactness tier, docs/exactness.md). The cost is measured after 200 random actions: median CPU milliseconds to save
the state and to restore it into another instance, and the bytes of the state in a checkpoint. After that, both
instances must return equal observations and rewards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from flows.config.compose import compose
from rlcore import streams
from rlcore.config.groups import EnvConfig
from rlcore.envs.card import environment_card
from rlcore.envs.exact.recording import random_action
from rlcore.envs.suites.registry import SUITES, suite_with
from rlcore.envs.vector.choose import make_vector_env

PAGE = Path(__file__).resolve().parents[1] / "docs/exactness.md"
BEGIN, END = "<!-- suites: made by python -m benchmarks.suites -->", "<!-- /suites -->"
STEPS, MORE, REPEATS = 200, 100, 5
PIXELS = ("algo.mlp_keys.encoder=[]", "algo.cnn_keys.encoder=[rgb]")
ENVIRONMENTS = (
    ("env.id=CartPole-v1",),
    ("env.id=FrozenLake-v1",),
    ("env=box2d",),
    ("env=box2d", "env.id=BipedalWalker-v3"),
    ("env=box2d", "env.id=CarRacing-v3", *PIXELS),
    ("env=mujoco", "env.id=HalfCheetah-v5"),
    ("env=atari", "env.screen_size=84", "env.grayscale=true", *PIXELS),
    ("env=atari", "env.id=ALE/Breakout-v5", "env.screen_size=84", "env.grayscale=true", *PIXELS),
    ("env=crafter", *PIXELS),
    ("env=dmc", "env.id=cartpole_balance", "env.wrapper.from_pixels=false"),
    ("env=dmc", "env.id=cartpole_balance", "env.wrapper.from_vectors=false", *PIXELS),
    ("env=minigrid", "env.id=MiniGrid-MemoryS7-v0"),
    ("env=dummy",),
    ("env=small",),
    ("env=small", "env.id=crosshair", *PIXELS),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="only environments whose overrides contain one of these")
    only = parser.parse_args().only
    for words in ENVIRONMENTS:
        if not only or any(part in " ".join(words) for part in only):
            write(row(compose(["exp=ppo", *words])[0].env))
    for suite in SUITES.values():
        if suite.tier and not only:
            write(
                f"| {suite.name} | {suite.ids()[0]} | {suite.tier} | declared, not tested: {suite.tier_reason} | | | |"
            )


def write(line: str) -> None:
    """Write a row of the table in docs/exactness.md; an earlier row of the same environment is replaced."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {known.split(" | ")[1]: known for known in table.splitlines()[3:]} | {line.split(" | ")[1]: line}
    head = ["| suite | environment | tier | tested | save, ms | restore, ms | bytes |", "|---" * 7 + "|"]
    PAGE.write_text("\n".join([before + BEGIN, *head, *rows.values(), END]) + after)
    print(line, flush=True)


def row(config: EnvConfig) -> str:
    """Test and measure an environment; return its row of the table."""
    card = environment_card(config)
    suite, tested = suite_with(config.id), card["tested"]
    assert suite is not None
    tier = card["tier"] + (", in a new instance" if card["fresh_instance"] else "")
    saved, restored, size = costs(config, card)
    cost = f"{milliseconds(saved)} | {milliseconds(restored)} | {size:,}"
    text = f"{tested['steps']:,} actions, {tested['episodes']} episode{'s' * (tested['episodes'] > 1)}"
    seen = config.id if config.wrapper.get("from_vectors", True) else f"{config.id}, pixels"
    return f"| {suite.name} | {seen} | {tier} | {text} | {cost} |"


def milliseconds(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def costs(config: EnvConfig, card: dict[str, Any]) -> tuple[float, float, int]:
    """Measure saving and restoring one environment: (CPU milliseconds to save, to restore, bytes of the state).

    `card` is the result of make-env's test of the environment.
    """
    one, other = (
        make_vector_env(config, num_envs=1, seed=0, tier=card["tier"], fresh_instance=card["fresh_instance"])
        for _ in range(2)
    )
    with closing(one), closing(other):
        rng, step = streams.generator(0, "probe", 0), one.reset()
        other.reset()
        for _ in range(STEPS):
            step = one.step(draw_action(one, rng, step))
        saved, restored = [], []
        for _ in range(REPEATS):
            begin = time.process_time()
            state = one.state_dict()
            middle = time.process_time()
            other.load_state_dict(state)
            saved.append(middle - begin)
            restored.append(time.process_time() - middle)
        for _ in range(MORE):
            action = draw_action(one, rng, step)
            step, again = one.step(action), other.step(action)
            same = all(np.array_equal(step.obs[key], again.obs[key]) for key in step.obs)
            assert same and np.array_equal(step.reward, again.reward), config.id
    return 1e3 * statistics.median(saved), 1e3 * statistics.median(restored), size_of(state)


def draw_action(envs: Any, rng: np.random.Generator, step: Any) -> np.ndarray:
    obs = {key: values[0] for key, values in step.obs.items()}
    return np.asarray(random_action(envs.spec, rng, obs))[None]


def size_of(state: Any) -> int:
    """Return the bytes of a state: the size of its arrays, plus the length of all other values as JSON text."""
    arrays: list[int] = []

    def without(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value.nbytes)
            return None
        return value.tolist() if isinstance(value, np.generic) else str(value)

    return len(json.dumps(state, default=without)) + sum(arrays)


if __name__ == "__main__":
    main()
