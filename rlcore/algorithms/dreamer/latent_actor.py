"""Actor that selects actions from the state of a world model: discrete actions, or continuous actions in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.algorithms.dreamer import latents
from rlcore.algorithms.dreamer.dense import Dense, Norm, glorot_linear
from rlcore.algorithms.dreamer.world_keys import MLPSpec, PolicySpec
from rlcore.functional.distributions import Categoricals, Normal, Policy, SquashedNormal, TruncatedNormal
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.nn.encoder import flatten_actions
from rlcore.nn.policy_head import ActionForm
from rlcore.spec import ActionSpec

Spread = Callable[[Tensor, Tensor, PolicySpec], Policy]


def scaled_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> Normal:
    """Return the policy distribution of Dreamer V3 for continuous actions, a normal (code of arXiv:2301.04104v1).

    `mean` and `spread` are network outputs. The normal has mean tanh(mean) and std
    (max_std - min_std) σ(spread + init_std) + min_std. max_std, min_std and init_std are fields of `form`; σ is the
    sigmoid.
    """
    std = (form.max_std - form.min_std) * torch.sigmoid(spread + form.init_std) + form.min_std
    return Normal(mean.tanh(), std.log())


def truncated_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> TruncatedNormal:
    """Return a normal distribution that is truncated to [-1, 1] (code of arXiv:2010.02193).

    `mean` and `spread` are network outputs. Before the truncation, the normal has mean tanh(mean) and std
    2 σ((spread + init_std) / 2) + min_std. init_std and min_std are fields of `form`; σ is the sigmoid.
    """
    return TruncatedNormal(mean.tanh(), 2 * torch.sigmoid((spread + form.init_std) / 2) + form.min_std)


def squashed_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> SquashedNormal:
    """Return the distribution of the tanh of a normal variable (arXiv:1912.01603, section 4).

    `mean` and `spread` are network outputs. The normal variable has mean 5 tanh(mean / 5) and std
    softplus(spread + init_std) + min_std. init_std and min_std are fields of `form`.
    """
    return SquashedNormal(5 * torch.tanh(mean / 5), (F.softplus(spread + form.init_std) + form.min_std).log())


def plain_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> Normal:
    """Return a normal distribution with mean `mean` and std softplus(spread + init_std) + min_std.

    `mean` and `spread` are network outputs. init_std and min_std are fields of `form`.
    """
    return Normal(mean, (F.softplus(spread + form.init_std) + form.min_std).log())


CONTINUOUS: dict[str, Spread] = {
    "scaled": scaled_normal,
    "trunc_normal": truncated_normal,
    "tanh_normal": squashed_normal,
    "normal": plain_normal,
}


class LatentActor(nn.Module):
    """Actor: an MLP that maps features of model states to a distribution over actions.

    The distribution consists of independent categoricals, or is one of `CONTINUOUS` for continuous actions.

    Args:
        inputs: F; number of features of a model state.
        action: action space of the environment.
        layers: number, size and settings of the hidden layers.
        form: type and settings of the distribution.
        stretch: true = scale continuous actions from [-1, 1] to the environment's bounds; false = clip them to the
            bounds.
        scale: initialization scale of output layers; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
        norm: normalization and activation of the hidden layers; see `dense.Dense`.
    """

    def __init__(
        self,
        inputs: int,
        action: ActionSpec,
        layers: MLPSpec,
        form: PolicySpec,
        stretch: bool,
        scale: float | None,
        rng: torch.Generator,
        norm: Callable[..., nn.Module] = Norm,
    ) -> None:
        super().__init__()
        self.action, self.says = action, form
        kind = "discrete" if not action.continuous else "scaled" if stretch else "normal"
        self.form = ActionForm(action, kind)
        outputs = [2 * action.size] if action.continuous else action.nvec
        self.hidden = Dense(inputs, layers, rng, norm=norm)
        self.heads = nn.ModuleList(glorot_linear(self.hidden.output_size, size, rng, scale) for size in outputs)

    def policy(self, feat: Tensor) -> Policy:
        """Return the distribution over actions [..., A] for features [..., F] of model states."""
        hidden, says = self.hidden(feat), self.says
        found = [to_float32(head(hidden.to(head.weight.dtype))) for head in self.heads]
        if self.action.continuous:
            mean, spread = found[0].chunk(2, -1)
            return CONTINUOUS[says.kind](mean, spread, says)
        return Categoricals(torch.cat([latents.unimix(part, says.unimix) for part in found], -1), self.action.nvec)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Draw the noise from which `forward` samples actions [*lead, A].

        Return [*lead, A'], with A' = A for continuous actions, and A' = number of all choices for discrete actions.
        """
        uniform = self.says.kind == "trunc_normal"
        draw = rng.exponential if not self.action.continuous else rng.uniform if uniform else rng.normal
        return draw(*lead, self.action.flat_size)

    def clip(self, action: Tensor) -> Tensor:
        """Limit the absolute value of continuous actions [..., A] to `PolicySpec.largest`; 0 = no limit.

        An action above the limit is multiplied by a factor that has no gradient. The result therefore has a gradient,
        unlike the result of `torch.clamp`.
        """
        largest = self.says.largest
        if not self.action.continuous or not largest:
            return action
        return action * (largest / action.abs().clamp(min=largest)).detach()

    def flat(self, action: Tensor) -> Tensor:
        """Convert actions [..., A] to vectors [..., A'] float32, the world model's input.

        Discrete actions are encoded one-hot.
        """
        return flatten_actions(action, self.action, action.ndim - 1)

    def forward(self, feat: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions for features [N, F] of model states, with noise that the method `noise` has drawn.

        Return the actions [N, A], and the actions as vectors [N, A'] for the input of the world model. The vectors are
        limited by `clip`, and gradients pass through them to the actor.
        """
        policy = self.policy(feat)
        action = policy.sample(noise)
        taken = self.flat(self.clip(action))
        if isinstance(policy, Categoricals):
            p = torch.cat([part.exp() for part in policy.parts], -1)
            taken = taken + (p - p.detach())  # straight-through gradient
        return action, taken
