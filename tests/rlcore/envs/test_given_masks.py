"""Action masks that an environment gives by its method `action_masks()` or in `info`, and masks that allow nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flows.config.compose import compose
from flows.runs.create import new_run
from rlcore.config.groups import EnvConfig
from rlcore.envs.card import environment_card
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import EnvironmentFault, UserError


class Ring(gymnasium.Env):
    """A ring of four places; only the action with the number of the place is allowed."""

    action_space: Any = spaces.Discrete(4)
    observation_space = spaces.Box(0, 99, (1,))

    def __init__(self, render_mode: str | None = None, size: int = 4, closed_at: int = -1, info: bool = True) -> None:
        self.render_mode, self.size, self.closed_at, self.gives_info, self.count = render_mode, size, closed_at, info, 0

    def allowed(self) -> list[bool]:
        return [self.count != self.closed_at and place == self.count % 4 for place in range(self.size)]

    def info(self, ended: bool = False) -> dict[str, Any]:
        return {"action_mask": np.array(self.allowed(), np.int8)} if self.gives_info and not ended else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), self.info()

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count >= 6, False, self.info(self.count >= 6)


class RingWithMethod(Ring):
    """The same with the method that users of sb3-contrib know; the mask is a list."""

    def action_masks(self) -> list[bool]:
        return self.allowed()


class Arm(RingWithMethod):
    action_space = spaces.Box(-1, 1, (2,))


for _cls in (Ring, RingWithMethod, Arm):
    gymnasium.register(f"Masks/{_cls.__name__}-v0", _cls)


@pytest.mark.parametrize(
    ("env_id", "from_info"), [("Masks/RingWithMethod-v0", False), ("Masks/Ring-v0", True), ("Masks/Ring-v0", False)]
)
def test_make_adds_given_mask(env_id: str, from_info: bool) -> None:
    env = make(EnvSettings(env_id, action_mask_from_info=from_info))
    spec, (obs, _) = spec_of(env), env.reset(seed=0)
    if env_id == "Masks/Ring-v0" and not from_info:
        assert spec.mask_keys == () and [*obs] == ["state"]
        return
    assert spec.mask_keys == ("action_mask",)
    for place in range(6):
        assert obs["action_mask"].tolist() == np.eye(4)[place % 4].tolist()
        obs, _, ended, _, _ = env.step(place % 4)
        assert env.observation_space["action_mask"].shape == obs["action_mask"].shape
    assert ended and obs["action_mask"].sum() == (0 if from_info else 1)


def test_make_adds_no_mask_for_continuous_actions() -> None:
    assert spec_of(make(EnvSettings("Masks/Arm-v0"))).mask_keys == ()
    with pytest.raises(UserError, match="^env.action_mask_from_info=true: action masks need discrete actions"):
        make(EnvSettings("Masks/Arm-v0", action_mask_from_info=True))


def test_given_mask_restores_with_environment() -> None:
    config = EnvConfig("Masks/RingWithMethod-v0", num_envs=2)
    first, second = (make_vector_env(config, num_envs=2, seed=0, tier="snapshot") for _ in range(2))
    first.reset()
    first.step(np.zeros(2, np.int64))
    second.load_state_dict(first.state_dict())
    ours, theirs = (envs.step(np.ones(2, np.int64)) for envs in (first, second))
    assert np.array_equal(ours.obs["action_mask"], theirs.obs["action_mask"]) and ours.obs["action_mask"][0, 2]


@pytest.mark.parametrize(
    ("env_id", "wrapper", "from_info", "message"),
    [
        (
            "Masks/RingWithMethod-v0",
            {"size": 3},
            False,
            r"key 'action_mask' has shape \(3,\), but its space has \(4,\)",
        ),
        ("Masks/Ring-v0", {"size": 5}, True, r"key 'action_mask' has shape \(5,\), but its space has \(4,\)"),
        ("Masks/Ring-v0", {"info": False}, True, "action_mask_from_info=true, but info has no key action_mask"),
    ],
)
def test_vector_env_refuses_wrong_given_mask(env_id: str, wrapper: Any, from_info: bool, message: str) -> None:
    settings = EnvSettings(env_id, wrapper=wrapper, action_mask_from_info=from_info)
    with pytest.raises(EnvironmentFault, match=message):
        make_vector_env(settings, num_envs=1, seed=0, tier="replay").reset()


def test_card_counts_states_without_action() -> None:
    card = environment_card(EnvSettings("Masks/RingWithMethod-v0", wrapper={"closed_at": 3}))
    # 100 steps play the states 0 to 5 and the last one of each episode of 6 steps, with one reset: 15 times state 3.
    assert card["tested"]["states_without_action"] in (14, 15)
    assert any("the action masks allow no action although the episode continues" in found for found in card["findings"])
    last = environment_card(EnvSettings("Masks/RingWithMethod-v0", wrapper={"closed_at": 6}))
    assert last["tested"]["states_without_action"] == 0 and "masks" not in str(last["findings"])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("env.wrapper.closed_at=0", "in the first state of an episode, the action masks allow no action although the"),
        ("env.wrapper.size=3", "the action mask 'action_mask' has shape (3,), but must have (4,), one entry for each"),
    ],
)
@pytest.mark.parametrize("algo", ["ppo", "a2c", "ppo_recurrent"])
def test_new_run_refuses_wrong_masks(
    algo: str, typed: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"exp={algo}", "env.id=Masks/RingWithMethod-v0", "run_dir=runs/masks", typed]
    with pytest.raises(UserError) as refused:
        new_run(words)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()
    config = compose([*words, "algo.action_masks=false"])[0]
    config.algo.check_spec(spec_of(make(config.env)))
