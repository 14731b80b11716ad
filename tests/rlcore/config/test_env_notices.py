"""Notices of an algorithm about masks and images of an environment at the start of a run."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flows.config.compose import compose
from flows.runs.env_card import write_card
from flows.runs.listeners import subscribe
from rlcore.algorithms import ALGORITHMS
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.errors import UserError
from rlcore.spec import EnvSpec
from rlcore.train.trainer import Trainer
from tests.rlcore.envs import probe_envs
from tests.runs import CARD, prepare

DREAMERS = [name for name in ALGORITHMS if name.startswith(("dreamer", "p2e"))]
ON_POLICY = ("ppo", "a2c", "ppo_recurrent")
OBEYS = dict.fromkeys(DREAMERS, "algo.actor.cls=masked_actor") | dict.fromkeys(ON_POLICY, "algo.action_masks=true")


def spec(observation: spaces.Space[Any]) -> EnvSpec:
    return spec_of(make(EnvSettings("Probe/Spaces-v0", wrapper={"observation": observation})))


def notices_of(algo: str, spec: EnvSpec, *overrides: str) -> list[str]:
    return list(compose([f"exp={algo}", *overrides])[0].algo.env_notices(spec))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_env_notices_warn_about_ignored_masks(algo: str) -> None:
    off = ["algo.action_masks=false"] if algo in ON_POLICY else []
    (notice,) = notices_of(algo, spec_of(make(EnvSettings("Probe/Masked-v0"))), *off)
    hint = f"; set {OBEYS[algo]} to obey them" if algo in OBEYS else ""
    sentence = "ignores action_mask of Probe/Masked-v0: its policy may choose forbidden actions"
    assert notice == f"{algo} {sentence}{hint}"


@pytest.mark.parametrize("algo", OBEYS)
def test_env_notices_are_empty_for_masked_policy(algo: str) -> None:
    assert notices_of(algo, spec_of(make(EnvSettings("Probe/Masked-v0"))), OBEYS[algo]) == []


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize(
    ("key", "mask", "message"),
    [
        (
            "action_mask",
            spaces.MultiBinary(3),
            r"masks of Probe/Spaces-v0 \(action_mask \[3\]\) have a wrong shape.* 2 ",
        ),
        ("mask", spaces.Box(0, 1, (4, 2), np.int8), r"masks of Probe/Spaces-v0 \(mask \[4, 2\]\) have a wrong shape"),
        (
            "action_mask",
            spaces.Box(-1, 1, (2,)),
            r"mask 'action_mask' of .* \(float32, \[2\], -1 to 1\) has a wrong space",
        ),
    ],
)
def test_check_spec_refuses_wrong_masks(algo: str, key: str, mask: spaces.Space[Any], message: str) -> None:
    found = spec(spaces.Dict({key: mask, "state": spaces.Box(-1, 1, (2,))}))
    with pytest.raises(UserError, match=f"^algo.action_masks=true: the action {message}") as refused:
        compose([f"exp={algo}"])[0].algo.check_spec(found)
    assert "\n" not in str(refused.value)
    compose([f"exp={algo}", "algo.action_masks=false"])[0].algo.check_spec(found)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": spaces.Discrete(3), "b": spaces.MultiBinary(1)}, "needs masks with 5 entries in total, one for each"),
        ({"b": spaces.Box(-1, 1, (1,))}, "has no discrete part"),
        ({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,))}, None),
    ],
)
def test_check_spec_refuses_masks_that_do_not_fit_parts(parts: dict[str, Any], message: str | None) -> None:
    observation = spaces.Dict({"action_mask": spaces.MultiBinary(2), "state": spaces.Box(-1, 1, (2,))})
    wrapper = {"observation": observation, "action": spaces.Dict(parts)}
    found = spec_of(make(EnvSettings("Probe/Spaces-v0", wrapper=wrapper)))
    algo = compose(["exp=ppo"])[0].algo
    if message is None:
        algo.check_spec(found)
        return
    with pytest.raises(UserError, match=rf"its Composite action {message}.*set algo.action_masks=false"):
        algo.check_spec(found)


@pytest.mark.parametrize(
    ("low", "high", "shape", "dtype", "described"),
    [
        (0, 255, (64, 64, 3), np.float32, "float32, [64, 64, 3], 0 to 255"),
        (0, 255, (3, 64, 64), np.int64, "int64, [3, 64, 64], 0 to 255"),
        (-np.inf, np.inf, (3, 64, 64), np.float32, "float32, [3, 64, 64], -inf to inf"),
        (-1, 1, (4, 64, 64, 3), np.float64, "float64, [4, 64, 64, 3], -1 to 1"),
    ],
)
def test_env_notices_and_check_spec_name_possible_image(
    low: float, high: float, shape: tuple[int, ...], dtype: Any, described: str
) -> None:
    found = EnvSpec.from_json(spec(spaces.Box(low, high, shape, dtype)).to_json())  # as stored in an environment card
    count = f"{np.prod(shape):,}"
    (notice,) = notices_of("ppo", found)
    assert notice.startswith(f"state of Probe/Spaces-v0 ({described}) is read as a vector of {count} numbers: an image")
    algo = compose(["exp=ppo", "algo.mlp_keys.encoder=[]", "algo.cnn_keys.encoder=[state]"])[0].algo
    with pytest.raises(UserError) as refused:
        algo.check_spec(found)
    assert "\n" not in str(refused.value)
    assert f"key 'state' of Probe/Spaces-v0 is of kind vector ({described}, for algo.mlp_keys.encoder)" in str(
        refused.value
    )
    sentence = "an image is a Box of uint8, or of real numbers with the bounds 0 and 1; declare it as such"
    assert sentence in str(refused.value)


@pytest.mark.parametrize("key", ["rgb", "state"])
def test_make_refuses_to_draw_beside_image_with_other_bounds(key: str) -> None:
    image = spaces.Box(0, 255, (3, 64, 64), np.float32)
    for observation, part in ((image, "state"), (spaces.Dict({key: image}), key)):
        settings = EnvSettings("Probe/Spaces-v0", wrapper={"observation": observation}, image_key=key)
        with pytest.raises(UserError, match=rf"'{part}' of Probe/Spaces-v0 \(float32, \[3, 64, 64\], 0 to 255\) is no"):
            make(settings)


def test_env_notices_ignore_images_and_small_arrays() -> None:
    assert notices_of("ppo", spec(spaces.Box(-9, 9, (4, 7, 3)))) == []
    images = spaces.Dict({"rgb": spaces.Box(0, 1, (64, 64, 3)), "state": spaces.Box(-1, 1, (2,))})
    assert notices_of("ppo", spec(images)) == []


def test_write_card_reports_env_notices_once(tmp_path: Any) -> None:
    run = prepare(tmp_path / "run", "Probe/Masked-v0", algo__mlp_keys__encoder=["x"], algo__action_masks=False)
    messages: list[Any] = []
    with subscribe(lambda kind, facts: messages.append(facts.get("doing"))):
        write_card(run, run.read_card())
    assert sum("ppo ignores action_mask of Probe/Masked-v0" in str(message) for message in messages) == 1


def test_trainer_logs_env_notices_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_envs.Masked, "step", gymnasium.Env.step)  # no step is taken
    overrides = ["algo.mlp_keys.encoder=[x]", "algo.total_steps=512", "algo.action_masks=false"]
    config = compose(["exp=ppo", "env.id=Probe/Masked-v0", *overrides])[0]
    Trainer(config, CARD | {"spec": spec_of(make(config.env)).to_json()}).close()
    assert caplog.text.count("ppo ignores action_mask of Probe/Masked-v0") == 1
