"""Policies that take only allowed actions, in everything that acts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from flows.config.compose import compose
from rlcore.compiled import machine_code
from rlcore.envs.exact.recording import allowed_action, random_action
from rlcore.envs.masks import draw_allowed
from rlcore.envs.spaces import bind
from rlcore.errors import UserError
from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import choose, disturb
from rlcore.spec import ActionSpec, ArraySpec, Binding, EnvSpec
from rlcore.train.trainer import Trainer
from tests.graphs import run_graphs
from tests.rlcore.envs import probe_envs as probe_envs  # registers Probe/Masked-v0
from tests.runs import SMALL_DREAMER
from tests.soaking import always, heavy

pytestmark = heavy

NVEC = (3, 2)
SPEC = EnvSpec(
    "Some-v0",
    {
        "state": ArraySpec((4,), "float32"),
        "mask_a": ArraySpec((2,), "bool", kind="mask"),
        "mask_b": ArraySpec((3,), "int8", kind="mask"),
    },
    ActionSpec("MultiDiscrete", (2,), "int64", NVEC, (0, 0)),
)
# The first part is the kind of action: kind 1 needs an available tool, kind 2 an item; the second part is free.
BOUND = {"mask_kind": (0,), "mask_tool": (2, 0, (1,)), "mask_item": (2, 0, (2,))}
CRAFTS = EnvSpec(
    "Crafts-v0",
    {
        "mask_kind": ArraySpec((3,), "bool", kind="mask", binds=Binding(0)),
        "mask_tool": ArraySpec((4,), "bool", kind="mask", binds=Binding(2, 0, (1,))),
        "mask_item": ArraySpec((4,), "bool", kind="mask", binds=Binding(2, 0, (2,))),
    },
    ActionSpec("MultiDiscrete", (3,), "int64", (3, 2, 4), (0, 0, 0)),
)


class Crafts(gymnasium.Env):
    """Environment with these actions; a forbidden action raises."""

    action_space = spaces.MultiDiscrete([3, 2, 4])
    observation_space = spaces.Dict(
        {"x": spaces.Box(0, 99, (1,))} | {key: spaces.MultiBinary(3 if key == "mask_kind" else 4) for key in BOUND}
    )
    mask_bindings = BOUND

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.count = render_mode, 0

    def obs(self) -> dict[str, Any]:
        def ones(size: int, *where: int) -> np.ndarray:
            return np.isin(np.arange(size), [at % size for at in where]).astype(np.int8)

        n = self.count
        masks = {"mask_kind": ones(3, n, n + 1), "mask_tool": ones(4, n), "mask_item": ones(4, n + 2, n + 3)}
        return masks | {"x": np.array([n], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        kind, _, what = (int(part) for part in action)
        obs = self.obs()
        needs = {1: "mask_tool", 2: "mask_item"}.get(kind)
        if not obs["mask_kind"][kind] or (needs and not obs[needs][what]):
            raise ValueError(f"{action} is not allowed now")
        self.count += 1
        return self.obs(), 1.0, self.count >= 25, False, {}


gymnasium.register("Probe/Crafts-v0", Crafts)


def crafts(count: int, seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    sizes = {key: part.size for key, part in CRAFTS.obs.items()}
    return {key: torch.rand(count, size, generator=rng) < 0.4 for key, size in sizes.items()}


def is_allowed(obs: dict[str, torch.Tensor], row: int, action: list[int]) -> bool:
    """Check the action of one row by itself."""
    kind, _, what = action
    if obs["mask_kind"][row].any() and not obs["mask_kind"][row, kind]:
        return False
    if kind == 0:
        return True
    mask = obs["mask_tool" if kind == 1 else "mask_item"][row]
    return not mask.any() or bool(mask[what])


def test_allowed_concatenates_masks_and_ignores_empty_ones() -> None:
    obs = {
        "mask_a": torch.tensor([[True, False], [False, False]]),
        "mask_b": torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8),
    }
    assert SPEC.mask_keys == ("mask_a", "mask_b")
    # Of 3 choices: a, a, b; of 2: b, b.
    assert SPEC.allowed(obs, 0, [], torch.cat).tolist() == [[True, False, True], [True, True, True]]
    assert SPEC.allowed(obs, 1, [], torch.cat).tolist() == [[False, True], [True, False]]


def test_choose_renormalizes_over_allowed_actions() -> None:
    logits, count = torch.randn(5, generator=torch.Generator().manual_seed(0)), 40_000
    obs = {"mask_a": torch.tensor([[True, False]]), "mask_b": torch.tensor([[1, 0, 1]])}
    obs = {key: mask.expand(count, -1) for key, mask in obs.items()}
    policy = Categoricals(logits.expand(count, 5), NVEC)
    p = logits[[0, 2]].exp() / logits[[0, 2]].exp().sum()
    actions = choose(SPEC, policy.parts, obs, Noise(0, "probe").exponential(count, 5))
    share = torch.bincount(actions[:, 0], minlength=3) / count
    torch.testing.assert_close(share, torch.tensor([p[0], 0, p[1]]), rtol=0, atol=0.0125)  # five standard errors
    assert (actions[:, 1] == 1).all()
    zero = choose(SPEC, policy.parts, obs, torch.zeros(count, 5))  # float32 noise is sometimes exactly zero
    assert (zero[:, 0] != 1).all() and (zero[:, 1] == 1).all()
    assert choose(SPEC, policy.parts, obs, None)[0].tolist() == [0 if p[0] > p[1] else 2, 1]


def test_choose_applies_dependent_mask_only_after_its_choice() -> None:
    count, obs = 4_000, crafts(4_000, 1)
    logits = torch.randn(count, 9, generator=torch.Generator().manual_seed(2))
    policy, noise = Categoricals(logits, (3, 2, 4)), Noise(0, "probe").exponential(count, 9)
    free = policy.sample(noise)
    random = torch.rand(count, 3, generator=torch.Generator().manual_seed(3)) < 0.3
    share = torch.rand(count, 3, generator=torch.Generator().manual_seed(4))
    actions = choose(CRAFTS, policy.parts, obs, noise)
    for action in (actions, choose(CRAFTS, policy.parts, obs, None), disturb(CRAFTS, actions, obs, share, random)):
        assert all(is_allowed(obs, row, taken) for row, taken in enumerate(action.tolist()))
    assert not all(is_allowed(obs, row, taken) for row, taken in enumerate(free.tolist()))
    # The same noise gives the same action wherever it is allowed.
    kept = [row for row, taken in enumerate(free.tolist()) if is_allowed(obs, row, taken)]
    assert (actions[kept] == free[kept]).all() and len(kept) > 500
    same = ~random.any(1)
    assert (disturb(CRAFTS, actions, obs, share, random)[same] == actions[same]).all()


def test_draw_allowed_is_uniform_over_allowed_actions() -> None:
    count = 60_000
    masks = {"mask_kind": [True, True, False], "mask_tool": [False, True, False, True], "mask_item": [True] * 4}
    obs = {key: np.tile(mask, (count, 1)) for key, mask in masks.items()}
    actions = draw_allowed(CRAFTS, obs, np.random.default_rng(0))
    tools = np.bincount(actions[actions[:, 0] == 1, 2], minlength=4) / (actions[:, 0] == 1).sum()
    rest = np.bincount(actions[actions[:, 0] == 0, 2], minlength=4) / (actions[:, 0] == 0).sum()
    assert np.abs(np.bincount(actions[:, 0], minlength=3) / count - [0.5, 0.5, 0]).max() < 0.0103
    assert np.abs(tools - [0, 0.5, 0, 0.5]).max() < 0.0145 and np.abs(rest - 0.25).max() < 0.0126
    shares = torch.from_numpy(np.random.default_rng(0).random((count, 3)))  # the same random numbers
    tensors = {key: torch.from_numpy(mask) for key, mask in obs.items()}
    everywhere = torch.ones(count, 3, dtype=torch.bool)
    ours = disturb(CRAFTS, torch.zeros(count, 3, dtype=torch.int64), tensors, shares, everywhere)
    assert (ours.numpy() == actions).all()
    rows, rng = crafts(300, 5), np.random.default_rng(1)
    for row in range(300):
        seen = {key: mask[row].numpy() for key, mask in rows.items()}
        for action in (random_action(CRAFTS, rng, seen), allowed_action(np.array([2, 1, 3]), CRAFTS, seen)):
            assert is_allowed(rows, row, action.tolist())


@pytest.mark.parametrize(
    "bindings",
    [
        {"mask_none": (0,)},
        {"x": (0,)},
        {"mask_kind": (1,)},
        {"mask_kind": (3,)},
        {"mask_tool": (2, 2, (1,))},
        {"mask_tool": (2, 0, (3,))},
        {"mask_tool": (2, 0, ())},
    ],
    ids=str,
)
def test_bind_refuses_wrong_mask_bindings(bindings: dict[str, Any]) -> None:
    obs = {key: dataclasses.replace(part, binds=None) for key, part in CRAFTS.obs.items()}
    obs["x"] = ArraySpec((3,), "float32")
    assert bind(obs, CRAFTS.action, BOUND) == {key: CRAFTS.obs[key].binds for key in BOUND}
    with pytest.raises(UserError, match="mask_bindings: "):
        bind(obs, CRAFTS.action, bindings)


def test_bind_refuses_condition_on_part_of_composite_action() -> None:
    obs = {key: dataclasses.replace(part, binds=None) for key, part in CRAFTS.obs.items()}
    action = ActionSpec("Composite", (4,), "float64", parts=(ActionSpec("Box", (1,), "float32"), CRAFTS.action))
    assert bind(obs, action, {"mask_kind": (0,)}) == {"mask_kind": Binding(0)}
    with pytest.raises(UserError, match=r"^mask_bindings: .*'mask_tool'.* cannot depend on another choice; declare"):
        bind(obs, action, BOUND)


def test_env_card_contains_mask_bindings() -> None:
    assert EnvSpec.from_json(CRAFTS.to_json()) == CRAFTS
    training = Trainer(compose(["exp=ppo", "env.id=Probe/Crafts-v0", "algo.mlp_keys.encoder=[x]"])[0])
    assert {key: training.envs.spec.obs[key] for key in BOUND} == {
        key: dataclasses.replace(part, dtype="int8") for key, part in CRAFTS.obs.items()
    }
    training.close()


def flat(group: dict[str, Any], prefix: str) -> list[str]:
    """Return nested keys as overrides."""
    parts = [flat(v, f"{prefix}{k}.") if isinstance(v, dict) else [f"{prefix}{k}={v}"] for k, v in group.items()]
    return [word for part in parts for word in part]


def train(cls: str, env_id: str) -> Trainer:
    """Train with random steps, agent steps and gradient steps; evaluate greedily and stochastically."""
    small = flat(SMALL_DREAMER, "algo.")
    overrides = [f"env.id={env_id}", "algo.mlp_keys.encoder=[x]", f"algo.actor.cls={cls}", *small]
    overrides += ["algo.total_steps=120", "algo.learning_starts=60", "algo.per_rank_sequence_length=8"]
    overrides += ["algo.replay_ratio=0.1", "algo.per_rank_batch_size=2", "env.num_envs=2", "algo.compile=false"]
    training = Trainer(compose(["exp=dreamer_v3_cartpole", *overrides])[0])
    for _ in training:
        pass
    for greedy in (True, False):
        assert training.evaluate(4, greedy=greedy)["mean"] == 25  # all episodes have full length
    return training


@always
@pytest.mark.parametrize("env_id", ["Probe/Masked-v0", "Probe/Crafts-v0"])
def test_masked_actor_takes_only_allowed_actions(env_id: str) -> None:
    training = train("masked_actor", env_id)  # the environment raises at a forbidden action
    assert training.learner.updates == 6
    assert training.learner.agent.keys == ("x", *training.envs.spec.mask_keys)
    training.close()


@pytest.mark.parametrize("env_id", ["Probe/Masked-v0", "Probe/Crafts-v0"])
def test_actor_without_masks_takes_forbidden_actions(env_id: str) -> None:
    with pytest.raises(Exception, match="is not allowed now"):
        train("actor", env_id)


def test_compiled_acting_obeys_dependent_masks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_code, "build", run_graphs)
    monkeypatch.setattr("rlcore.train.trainer.warm_up", lambda *_: None)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    overrides = ["env.id=Probe/Crafts-v0", "algo.mlp_keys.encoder=[x]", "algo.actor.cls=masked_actor", "env.num_envs=2"]
    config = compose(["exp=dreamer_v3_cartpole", *overrides, *flat(SMALL_DREAMER, "algo.")])[0]
    written, traced = (Trainer(config, compiled=compiled) for compiled in (False, True))
    for _ in range(3):  # the environment raises at a forbidden action
        (steps, _), (others, _) = (each.collector.collect(20) for each in (written, traced))
        assert torch.equal(steps.action, others.action)
    assert traced.collector.compiled
    assert len(steps.action.unique(dim=0)) > 1 < len(steps.action[..., 2].unique())
    for each in (written, traced):
        each.close()


@always
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (dataclasses.replace(SPEC, obs={"state": SPEC.obs["state"]}), "Some-v0 has no action masks for its 5 choices"),
        (
            dataclasses.replace(SPEC, action=ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,))),
            "Some-v0 has no action masks for its continuous action",
        ),
        (
            dataclasses.replace(SPEC, action=ActionSpec("MultiDiscrete", (2,), "int64", (3, 4), (0, 0))),
            "Some-v0 has no action masks for its 7 choices",
        ),
    ],
)
def test_masked_actor_refuses_environment_without_masks(spec: EnvSpec, reason: str) -> None:
    config = compose(["exp=dreamer_v3_cartpole", "algo.actor.cls=masked_actor"])[0]
    with pytest.raises(UserError, match=f"algo.actor.cls=masked_actor: {reason}.*set it to actor"):
        config.algo.check_spec(spec)
    compose(["exp=dreamer_v3_cartpole"])[0].algo.check_spec(spec)
    config.algo.check_spec(SPEC)


def test_minedojo_actor_name_means_masked_actor() -> None:
    theirs = "algo.actor.cls=sheeprl.algos.dreamer_v3.agent.MinedojoActor"
    assert compose(["exp=dreamer_v3_cartpole", theirs])[0].algo.actor.cls == "masked_actor"
