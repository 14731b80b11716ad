"""Policies kept to what an environment allows, in everything that acts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from flows.config.compose import compose
from rlcore.envs.masks import draw_allowed
from rlcore.errors import UserError
from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import Restricted, find_allowed, pick
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.training import Training
from tests.rlcore.envs import probe_envs as probe_envs  # registers Probe/Masked-v0
from tests.runs import SMALL_DREAMER

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


def test_masks_lie_one_behind_the_other_and_one_that_leaves_nothing_binds_nobody() -> None:
    obs = {
        "mask_a": torch.tensor([[True, False], [False, False]]),
        "mask_b": torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8),
    }
    assert SPEC.mask_keys == ("mask_a", "mask_b")
    found = find_allowed(obs, SPEC.mask_keys, NVEC)  # of 3 choices: a, a, b; of 2: b, b
    assert found.tolist() == [[True, False, True, False, True], [True, True, True, True, False]]


def test_a_policy_is_the_same_among_what_is_allowed() -> None:
    logits = torch.randn(5, generator=torch.Generator().manual_seed(0))
    allowed = torch.tensor([True, False, True, False, True])
    policy, count = Restricted(Categoricals(logits.expand(1, 5), NVEC), allowed), 40_000
    p = logits[[0, 2]].exp() / logits[[0, 2]].exp().sum()
    torch.testing.assert_close(policy.parts[0].exp()[0], torch.tensor([p[0], 0, p[1]]))
    assert policy.parts[1].exp()[0].tolist() == [0, 1]
    many = Restricted(Categoricals(logits.expand(count, 5), NVEC), allowed)
    drawn = many.sample(Noise(0, "probe").exponential(count, 5))
    share = torch.bincount(drawn[:, 0], minlength=3) / count
    torch.testing.assert_close(share, torch.tensor([p[0], 0, p[1]]), rtol=0, atol=0.0125)  # five standard errors
    assert (drawn[:, 1] == 1).all()
    assert many.sample(torch.zeros(count, 5))[:, 1].eq(1).all()  # as float32 draws it now and then
    assert policy.mode().tolist() == [[0 if p[0] > p[1] else 2, 1]]


def test_random_choices_are_those_that_the_environments_own_draw_gives() -> None:
    rng = np.random.default_rng(3)
    allowed = rng.random((500, 5)) < 0.5
    obs = {"mask_a": torch.from_numpy(allowed[:, :2]), "mask_b": torch.from_numpy(allowed[:, 2:])}
    share = np.random.default_rng(7).random((500, 2))  # what the next line draws
    expected = draw_allowed(allowed, NVEC, np.random.default_rng(7))
    found = pick(torch.from_numpy(share), find_allowed(obs, SPEC.mask_keys, NVEC), NVEC)
    assert found.tolist() == expected.tolist()


def flat(group: dict[str, Any], prefix: str) -> list[str]:
    """Nested keys as a user types them."""
    parts = [flat(v, f"{prefix}{k}.") if isinstance(v, dict) else [f"{prefix}{k}={v}"] for k, v in group.items()]
    return [word for part in parts for word in part]


def trained(cls: str) -> Training:
    """Some steps at random, some of the agent, gradient steps between them, and an evaluation, greedy and not."""
    small = flat(SMALL_DREAMER, "algo.")
    overrides = ["env.id=Probe/Masked-v0", "algo.mlp_keys.encoder=[x]", f"algo.actor.cls={cls}", *small]
    overrides += ["algo.total_steps=120", "algo.learning_starts=60", "algo.per_rank_sequence_length=8"]
    overrides += ["algo.replay_ratio=0.1", "algo.per_rank_batch_size=2", "env.num_envs=2", "algo.compile=false"]
    training = Training(compose(["exp=dreamer_v3_cartpole", *overrides])[0])
    for _ in training:
        pass
    for greedy in (True, False):
        assert training.evaluate(4, greedy=greedy)["mean"] == 25  # nothing else ends its episodes
    return training


def test_a_masked_actor_takes_no_action_that_is_not_allowed_however_it_acts() -> None:
    training = trained("masked_actor")  # its environment raises at any other
    assert training.learner.updates == 6
    assert training.learner.agent.keys == ("x", "action_mask")
    training.close()


def test_an_actor_without_masks_does() -> None:
    with pytest.raises(Exception, match="is not allowed now"):
        trained("actor")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (dataclasses.replace(SPEC, obs={"state": SPEC.obs["state"]}), "Some-v0 gives no masks for 5 choices"),
        (
            dataclasses.replace(SPEC, action=ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,))),
            "Some-v0 gives no masks of a continuous action",
        ),
        (
            dataclasses.replace(SPEC, action=ActionSpec("MultiDiscrete", (2,), "int64", (3, 4), (0, 0))),
            "Some-v0 gives no masks for 7 choices",
        ),
    ],
)
def test_a_masked_actor_without_masks_is_refused(spec: EnvSpec, says: str) -> None:
    config = compose(["exp=dreamer_v3_cartpole", "algo.actor.cls=masked_actor"])[0]
    with pytest.raises(UserError, match=f"algo.actor.cls=masked_actor: {says}.*set it to actor"):
        config.algo.check_spec(spec)
    compose(["exp=dreamer_v3_cartpole"])[0].algo.check_spec(spec)
    config.algo.check_spec(SPEC)


def test_sheeprls_name_of_it_is_read() -> None:
    theirs = "algo.actor.cls=sheeprl.algos.dreamer_v3.agent.MinedojoActor"
    assert compose(["exp=dreamer_v3_cartpole", theirs])[0].algo.actor.cls == "masked_actor"
