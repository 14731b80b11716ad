"""Probabilities, entropies and samples of masked policies, compared with an enumeration of all actions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import masked_policy
from rlcore.spec import ActionSpec, ArraySpec, Binding, EnvSpec

ROWS = 6


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run."""
    torch.manual_seed(0)


def make_spec(nvec: tuple[int, ...], masks: dict[str, tuple[int, Binding | None]]) -> EnvSpec:
    obs = {key: ArraySpec((size,), "bool", kind="mask", binds=binds) for key, (size, binds) in masks.items()}
    return EnvSpec("Some-v0", obs, ActionSpec("MultiDiscrete", (len(nvec),), "int64", nvec, (0,) * len(nvec)))


SPECS = {
    "one sub-action": make_spec((5,), {"mask": (5, None)}),
    "two sub-actions": make_spec((3, 2), {"mask_a": (2, None), "mask_b": (3, None)}),
    "a free sub-action": make_spec((3, 2), {"mask_b": (2, Binding(1))}),
    "one condition": make_spec(
        (4, 2, 3), {"mask_a": (4, Binding(0)), "mask_b": (3, Binding(2, 0, (1, 2))), "mask_c": (3, Binding(2, 0, (0,)))}
    ),
    # The mask of sub-action 2 depends on sub-action 1, whose mask depends on sub-action 0.
    "a chain of conditions": make_spec(
        (3, 3, 3, 2),
        {"mask_a": (3, Binding(1, 0, (2,))), "mask_b": (3, Binding(2, 1, (0, 1))), "mask_c": (2, Binding(3, 2, (1,)))},
    ),
    "two conditions": make_spec((2, 3, 3), {"mask_a": (3, Binding(2, 0, (1,))), "mask_b": (3, Binding(2, 1, (0,)))}),
}


def draw(spec: EnvSpec, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Draw logits [ROWS, sum(nvec)] and masks that allow at least one choice of each sub-action."""
    rng = torch.Generator().manual_seed(seed)
    obs = {key: torch.rand(ROWS, part.size, generator=rng) < 0.5 for key, part in spec.obs.items()}
    for mask in obs.values():
        mask[:, -1] = True
    return torch.randn(ROWS, sum(spec.action.nvec), generator=rng, dtype=torch.float64), obs


def is_allowed(spec: EnvSpec, obs: dict[str, Tensor], row: int, action: tuple[int, ...]) -> bool:
    """Check one action by itself."""
    if all(spec.obs[key].binds is None for key in obs):
        flat = torch.cat([obs[key][row] for key in obs]).split(spec.action.nvec)
        return all(bool(mask[taken]) for mask, taken in zip(flat, action, strict=True))
    for key, mask in obs.items():
        about = spec.obs[key].binds
        assert about is not None
        if (about.by is None or action[about.by] in about.when) and not mask[row, action[about.part]]:
            return False
    return True


def enumerate_policy(spec: EnvSpec, logits: Tensor, obs: dict[str, Tensor], row: int) -> dict[tuple[int, ...], Tensor]:
    """Return the log-probability of every allowed action of one row: each sub-action given the earlier ones."""
    parts, found = logits[row].split(spec.action.nvec), dict[tuple[int, ...], Tensor]()
    actions = [*itertools.product(*map(range, spec.action.nvec))]
    for action in actions:
        if not is_allowed(spec, obs, row, action):
            continue
        total = logits.new_zeros(())
        for part, taken in enumerate(action):
            # A choice is allowed if an action with these earlier choices is allowed by the masks of this sub-action.
            others = [
                choice
                for choice in range(spec.action.nvec[part])
                if any(
                    is_allowed(spec, obs, row, other)
                    for other in actions
                    if other[:part] == action[:part] and other[part] == choice
                )
            ]
            total = total + parts[part][taken] - parts[part][others].logsumexp(0)
        found[action] = total
    return found


@pytest.mark.parametrize("name", SPECS)
def test_masked_policy_equals_enumeration(name: str) -> None:
    spec = SPECS[name]
    logits, obs = draw(spec)
    logits.requires_grad_()
    policy = masked_policy(spec, logits, obs)
    entropy = policy.entropy()
    expected = list[Tensor]()
    for row in range(ROWS):
        exact = enumerate_policy(spec, logits, obs, row)
        actions = torch.tensor([*exact])
        rows = logits[row].expand(len(actions), -1)
        alike = masked_policy(spec, rows, {key: mask[row].expand(len(actions), -1) for key, mask in obs.items()})
        logprob = torch.stack([*exact.values()])
        torch.testing.assert_close(alike.logprob(actions), logprob)
        torch.testing.assert_close(logprob.exp().sum().item(), 1.0)  # so forbidden actions have probability 0
        expected.append(-(logprob.exp() * logprob).sum())
    torch.testing.assert_close(entropy, torch.stack(expected))
    (gradient,) = torch.autograd.grad(entropy.sum(), logits, retain_graph=True)
    (other,) = torch.autograd.grad(torch.stack(expected).sum(), logits)
    torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("name", SPECS)
def test_masked_policy_samples_match_logprob(name: str) -> None:
    spec, count = SPECS[name], 40_000
    logits, obs = draw(spec, seed=1)
    exact = enumerate_policy(spec, logits, obs, 0)
    policy = masked_policy(
        spec, logits[0].float().expand(count, -1), {key: mask[0].expand(count, -1) for key, mask in obs.items()}
    )
    drawn = policy.sample(Noise(0, "probe").exponential(count, sum(spec.action.nvec)))
    actions, counts = drawn.unique(dim=0, return_counts=True)
    shares = {tuple(action): share for action, share in zip(actions.tolist(), (counts / count).tolist(), strict=True)}
    assert shares.keys() <= exact.keys()
    for action, logprob in exact.items():
        assert abs(shares.get(action, 0.0) - logprob.exp().item()) < 0.0125  # five standard errors
    zero = policy.sample(torch.zeros(count, sum(spec.action.nvec)))  # float32 noise is sometimes exactly zero
    assert {tuple(action) for action in zero[:10].tolist()} <= exact.keys()
    assert tuple(policy.mode()[0].tolist()) in exact


def test_masked_policy_without_forbidden_choices_equals_categoricals() -> None:
    spec = SPECS["two sub-actions"]
    logits, _ = draw(spec)
    obs = {key: torch.ones(ROWS, part.size, dtype=torch.bool) for key, part in spec.obs.items()}
    masked, free = masked_policy(spec, logits, obs), Categoricals(logits, spec.action.nvec)
    action, noise = free.mode(), torch.rand(ROWS, 5)
    for ours, theirs in zip(
        (masked.logprob(action), masked.entropy(), masked.sample(noise), masked.mode()),
        (free.logprob(action), free.entropy(), free.sample(noise), free.mode()),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masked_policy_is_finite_in_low_precision(dtype: torch.dtype) -> None:
    spec = SPECS["one sub-action"]
    logits = torch.full((1, 5), 100.0, dtype=dtype, requires_grad=True)
    policy = masked_policy(spec, logits, {"mask": torch.tensor([[1, 0, 0, 1, 0]])})
    loss = policy.entropy().sum() + policy.logprob(torch.tensor([[3]])).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and gradient.isfinite().all()
    assert (gradient[0, [1, 2, 4]] == 0).all()
    torch.testing.assert_close(policy.entropy().float(), torch.tensor([2.0]).log(), rtol=0.01, atol=0)
