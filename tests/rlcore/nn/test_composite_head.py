"""Policy head for composite actions, compared with torch.distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from rlcore.errors import UserError
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import Masks
from rlcore.nn.composite_head import CompositeHead
from rlcore.nn.encoder import flatten_actions
from rlcore.nn.network_keys import ActorConfig, kind_of
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

BOX = ActionSpec("Box", (3,), "float32", low=(-1.0, -1.0, -2.0), high=(2.0, -1.0, 3.0))  # element 1 has one value
DIGIT = ActionSpec("Discrete", (), "int64", (3,), (5,))
KEYS = ActionSpec("MultiDiscrete", (2,), "int64", (2, 4), (0, 1))
SPEC = ActionSpec("Composite", (6,), "float64", parts=(BOX, DIGIT, KEYS), names=("arm", "digit", "keys"))
N = 50


def head(distribution: str = "auto", **settings: bool) -> CompositeHead:
    return CompositeHead(7, SPEC, distribution, ActorConfig(**settings), torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def random() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("distribution", ["auto", "tanh_normal"])
@pytest.mark.parametrize("dependent", [True, False])
def test_composite_logprob_and_entropy_are_sums_of_parts(distribution: str, dependent: bool) -> None:
    own, x = head(distribution, state_dependent_std=dependent), torch.randn(N, 7, generator=random())
    policy = own.policy(own(x))
    action = policy.sample(own.noise(N, Noise(0, "policy")))
    box, digit, keys = own.heads[0](x), own.heads[1](x), own.heads[2](x)
    mean, log_std = box.chunk(2, -1)
    choices = [Categorical(logits=logits) for logits in (digit, keys[:, :2], keys[:, 2:])]
    assert action.shape == (N, 5) and action.dtype == torch.float32  # the closed element has no column
    of_choices = [c.log_prob(action[:, 2 + i]) for i, c in enumerate(choices)]
    normal = Normal(mean, log_std.exp())
    expected, u = normal.log_prob(action[:, :2]), action[:, :2]
    if distribution == "tanh_normal":
        squashed = TransformedDistribution(Normal(mean.double(), log_std.exp().double()), [TanhTransform()])
        expected = squashed.log_prob(u.double().tanh()).float()
    torch.testing.assert_close(policy.logprob(action), expected.sum(-1) + sum(of_choices), rtol=1e-4, atol=1e-4)
    if distribution == "auto":
        entropy = normal.entropy().sum(-1) + sum(c.entropy() for c in choices)
        torch.testing.assert_close(policy.entropy(), entropy, rtol=1e-5, atol=1e-5)
        mode = torch.cat([mean, *(c.probs.argmax(-1, keepdim=True).float() for c in choices)], -1)
        torch.testing.assert_close(policy.mode(), mode)


def test_composite_samples_have_probabilities_of_parts() -> None:
    own, count = head(), 20_000
    x = torch.randn(1, 7, generator=random()).expand(count, 7)
    with torch.no_grad():
        action = own.policy(own(x)).sample(own.noise(count, Noise(0, "policy")))
        probabilities = Categorical(logits=own.heads[1](x[:1])).probs[0]
        mean, log_std = own.heads[0](x[:1])[0].chunk(2)
    share = torch.bincount(action[:, 2].long(), minlength=3) / count
    assert (share - probabilities).abs().max() < 5 * 0.5 / count**0.5
    assert ((action[:, :2].mean(0) - mean).abs() < 5 * log_std.exp() / count**0.5).all()


def test_composite_masks_forbid_choices_of_discrete_parts() -> None:
    masks = {"mask_a": ArraySpec((4,), "bool", kind="mask"), "mask_b": ArraySpec((5,), "bool", kind="mask")}
    spec = EnvSpec("Some-v0", masks, SPEC)
    # Of 3 digits, the last two; of 2 levers, both; of 4 keys, the first and the third.
    rows = torch.tensor([0, 1, 1, 1, 1, 1, 0, 1, 0], dtype=torch.bool).expand(N, 9)
    assert spec.mask_keys == ("mask_a", "mask_b")
    own, x = head(), torch.randn(N, 7, generator=random())
    parameters = own(x)
    policy = own.policy(parameters, Masks(spec, {"mask_a": rows[:, :4], "mask_b": rows[:, 4:]}))
    action = policy.sample(own.noise(N, Noise(0, "policy")))
    box, digit, keys = own.heads[0](x), own.heads[1](x), own.heads[2](x)
    mean, log_std = box.chunk(2, -1)
    choices = [Categorical(logits=logits) for logits in (digit[:, 1:], keys[:, :2], keys[:, [2, 4]])]
    places = [torch.tensor([0, 0, 1]), torch.tensor([0, 1]), torch.tensor([0, 0, 1, 0])]  # choice -> allowed choice
    taken = action[:, 2:].long().unbind(-1)
    assert all(bool(mask[choice].all()) for mask, choice in zip(rows[0].split((3, 2, 4)), taken, strict=True))
    normal = Normal(mean, log_std.exp())
    of_choices = [c.log_prob(place[choice]) for c, place, choice in zip(choices, places, taken, strict=True)]
    torch.testing.assert_close(policy.logprob(action), normal.log_prob(action[:, :2]).sum(-1) + sum(of_choices))
    entropy = normal.entropy().sum(-1) + sum(c.entropy() for c in choices)
    torch.testing.assert_close(policy.entropy(), entropy)
    allowed = [torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([0, 2])]
    mode = [which[c.probs.argmax(-1)] for c, which in zip(choices, allowed, strict=True)]
    torch.testing.assert_close(policy.mode()[:, 2:], torch.stack(mode, -1).float())
    forbidden = action.clone()
    forbidden[:, 2] = 0
    assert (policy.logprob(forbidden) < -1e30).all()


@pytest.mark.parametrize("distribution", ["auto", "tanh_normal"])
def test_to_env_is_inverse_of_from_env(distribution: str) -> None:
    own = head(distribution)
    env = torch.tensor([[0.5, -1.0, 2.0, 6.0, 1.0, 3.0], [-0.5, -1.0, 0.0, 7.0, 0.0, 4.0]], dtype=torch.float64)
    agent = own.from_env(env)
    assert agent.shape == (2, 5) and agent.dtype == torch.float32
    assert agent[:, 2:].tolist() == [[1, 1, 2], [2, 0, 3]]  # counted from 0
    back = own.to_env(agent)
    assert back.dtype == torch.float64
    torch.testing.assert_close(back, env, rtol=1e-6, atol=1e-6)
    far = torch.tensor([[9.0, 9.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(own.to_env(far)[0, :3], torch.tensor([2.0, -1.0, 3.0]).double(), rtol=1e-6, atol=1e-6)


def test_flatten_actions_encodes_discrete_parts_one_hot() -> None:
    action = torch.tensor([[0.5, -0.25, 2.0, 1.0, 0.0]])
    expected = [[0.5, -0.25, 0, 0, 1, 0, 1, 1, 0, 0, 0]]
    assert flatten_actions(action, SPEC, 1).tolist() == expected
    assert len(expected[0]) == SPEC.flat_size
    frames: Tensor = action.expand(2, 3, 5)  # [N, frames, A]
    assert flatten_actions(frames, SPEC, 1).tolist() == [expected[0] * 3] * 2


def test_kind_of_checks_distribution_of_composite_action() -> None:
    discrete = ActionSpec("Composite", (3,), "float64", parts=(DIGIT, KEYS), names=("a", "b"))
    assert kind_of(SPEC, "normal") == kind_of(discrete, "auto") == "composite"
    with pytest.raises(UserError, match="must be auto, or normal or tanh_normal for its Box parts"):
        kind_of(discrete, "normal")
    endless = ActionSpec("Box", (1,), "float32", low=(0.0,), high=(float("inf"),))
    with pytest.raises(UserError, match="needs actions with finite lower and upper bounds"):
        kind_of(ActionSpec("Composite", (1,), "float64", parts=(endless,), names=("a",)), "tanh_normal")


def test_policy_head_refuses_composite_action() -> None:
    with pytest.raises(UserError, match="cannot choose the actions of a Dict or Tuple action space"):
        PolicyHead(7, SPEC, "auto", ActorConfig(), torch.Generator())
