from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.distributions import Categoricals, Normal, TanhNormal
from rlcore.functional.noise import Noise
from rlcore.nn.network_keys import ActorConfig, kind_of
from rlcore.nn.policy_head import PolicyHead
from rlcore.spec import ActionSpec, EnvSpec

INF = float("inf")
BOX = ActionSpec("Box", (2,), "float32", low=(2.0, -1.0), high=(5.0, 1.0))
HALF = ActionSpec("Box", (1,), "float32", low=(0.0,), high=(INF,))
CLOSED = ActionSpec("Box", (3,), "float32", low=(0.5, -1.0, 3.0), high=(0.5, 1.0, 3.0))
GRID = ActionSpec("MultiDiscrete", (2,), "int64", nvec=(2, 3), start=(1, -1))
BITS = ActionSpec("MultiBinary", (2, 2), "int8", nvec=(2,) * 4, start=(0,) * 4)
ONE = ActionSpec("Discrete", (), "int64", nvec=(3,), start=(4,))


def head(action: ActionSpec, distribution: str = "auto", **config: object) -> PolicyHead:
    return PolicyHead(6, action, distribution, ActorConfig(**config), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("action", "distribution", "expected"),
    [
        (BOX, "auto", "normal"),
        (BOX, "tanh_normal", "tanh_normal"),
        (GRID, "auto", "discrete"),
        (ONE, "discrete", "discrete"),
    ],
)
def test_kind_of_follows_action_space_by_default(action: ActionSpec, distribution: str, expected: str) -> None:
    assert kind_of(action, distribution) == expected


def test_kind_of_refuses_unsuitable_distribution() -> None:
    with pytest.raises(UserError, match="not available for a Discrete action; must be one of auto, discrete"):
        kind_of(ONE, "normal")
    with pytest.raises(UserError, match="needs actions with finite lower and upper bounds"):
        kind_of(HALF, "tanh_normal")


@pytest.mark.parametrize(("action", "kind"), [(ONE, Categoricals), (BOX, Normal)])
def test_policy_head_has_one_action_column_per_dimension(action: ActionSpec, kind: type) -> None:
    module = head(action)
    policy = module.policy(module(torch.zeros(5, 6)))
    assert type(policy) is kind
    sample = policy.sample(module.noise(5, Noise(0, "policy")))
    assert sample.shape == (5, action.size) and policy.logprob(sample).shape == (5,)


def test_state_independent_std_is_one_parameter_per_dimension() -> None:
    module = head(BOX, state_dependent_std=False, log_std_init=-0.5)
    assert module.linear.out_features == 2
    policy = module.policy(module(torch.randn(4, 6, generator=torch.Generator().manual_seed(1))))
    torch.testing.assert_close(policy.std, torch.full((4, 2), math.exp(-0.5)))
    policy.logprob(torch.zeros(4, 2)).sum().backward()
    assert module.log_std.grad.all()


def test_state_dependent_std_starts_around_log_std_init() -> None:
    shifted, plain = head(BOX, log_std_init=-3.0), head(BOX)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(shifted(x)[:, 2:], plain(x)[:, 2:] - 3)
    torch.testing.assert_close(shifted(x)[:, :2], plain(x)[:, :2])
    assert plain(x)[:, 2:].std(0).min() > 0


@pytest.mark.parametrize("state_dependent_std", [True, False])
def test_log_std_bound_limits_log_std(state_dependent_std: bool) -> None:
    given: dict[str, Any] = {"state_dependent_std": state_dependent_std, "log_std_init": 3.0}
    bounded, plain = head(BOX, log_std_bound=0.5, **given), head(BOX, **given)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    means, log_std = plain(x).detach().numpy().reshape(4, 2, 2).swapaxes(0, 1)
    np.testing.assert_allclose(bounded(x).detach().numpy()[:, :2], means, rtol=1e-6)
    np.testing.assert_allclose(bounded(x).detach().numpy()[:, 2:], 0.5 * np.tanh(log_std / 0.5), rtol=1e-6)
    assert (bounded.policy(bounded(x)).std <= math.exp(0.5)).all()


def test_ortho_init_starts_with_nearly_equal_logits() -> None:
    weight = head(ONE, ortho_init=True).linear.weight.detach()
    torch.testing.assert_close(torch.linalg.svdvals(weight), torch.full((3,), 0.01))


@pytest.mark.parametrize(
    ("action", "columns", "expected"),
    [
        (ONE, [[0], [2]], [4, 6]),
        (GRID, [[0, 0], [1, 2]], [[1, -1], [2, 1]]),
        (BITS, [[0, 1, 1, 0]], [[[0, 1], [1, 0]]]),
        (BOX, [[9.0, 0.5], [3.0, -7.0]], [[5.0, 0.5], [3.0, -1.0]]),  # clipped into the bounds
        (HALF, [[-3.0], [1e6]], [[0.0], [1e6]]),
        (CLOSED, [[0.25], [7.0]], [[0.5, 0.25, 3.0], [0.5, 1.0, 3.0]]),
    ],
)
def test_to_env_returns_environment_form(action: ActionSpec, columns: list, expected: list) -> None:
    env_actions = head(action).to_env(torch.tensor(columns)).numpy()
    assert env_actions.dtype == np.dtype(action.dtype) and env_actions.shape == (len(columns), *action.shape)
    np.testing.assert_array_equal(env_actions, np.asarray(expected, action.dtype))


@pytest.mark.parametrize(
    ("action", "distribution"),
    [(a, "auto") for a in (ONE, GRID, BITS, BOX, HALF, CLOSED)] + [(a, "tanh_normal") for a in (BOX, CLOSED)],
)
def test_from_env_inverts_to_env(action: ActionSpec, distribution: str) -> None:
    module, random = head(action, distribution), RandomAgent(EnvSpec("Some-v0", {}, action))
    env_actions = random.to_env(random.act((), {}, torch.zeros(500, dtype=torch.bool), Noise(0, "prefill"))[1])
    actions = module.from_env(env_actions)
    assert actions.shape == (500, action.size) and actions.isfinite().all()
    policy = module.policy(module(torch.zeros(500, 6)))
    assert actions.dtype == policy.sample(module.noise(500, Noise(0, "policy"))).dtype
    torch.testing.assert_close(module.to_env(actions), env_actions, rtol=1e-5, atol=1e-5)
    assert (
        module.to_env(actions).dtype == env_actions.dtype
        and module.policy(module(torch.zeros(500, 6))).logprob(actions).isfinite().all()
    )


def test_from_env_of_tanh_normal_bounds_is_finite() -> None:
    edges = torch.tensor([[2.0, -1.0], [5.0, 1.0]])
    module = head(BOX, "tanh_normal")
    assert module.from_env(edges).isfinite().all()
    torch.testing.assert_close(module.to_env(module.from_env(edges)), edges, rtol=1e-5, atol=1e-5)


def test_to_env_scales_squashed_actions_to_box() -> None:
    module = head(BOX, "tanh_normal")
    assert isinstance(module.policy(module(torch.zeros(1, 6))), TanhNormal)
    env_actions = module.to_env(torch.tensor([[0.0, 0.0], [100.0, 100.0], [-100.0, -100.0]])).numpy()
    np.testing.assert_allclose(env_actions, [[3.5, 0.0], [5.0, 1.0], [2.0, -1.0]])


def test_noise_has_distribution_of_policy() -> None:
    normal, exponential = (
        head(BOX).noise(20_000, Noise(0, "policy")),
        head(GRID).noise(20_000, Noise(0, "policy")),
    )
    assert normal.dtype == exponential.dtype == torch.float32
    assert normal.shape == (20_000, 2) and exponential.shape == (20_000, 5)
    # Standard normal: mean 0, std 1. Standard exponential: mean 1, never negative.
    assert normal.mean().item() == pytest.approx(0, abs=0.03) and normal.std().item() == pytest.approx(1, abs=0.03)
    assert exponential.mean().item() == pytest.approx(1, abs=0.03) and exponential.min() >= 0
    assert torch.equal(normal, head(BOX).noise(20_000, Noise(0, "policy")))
