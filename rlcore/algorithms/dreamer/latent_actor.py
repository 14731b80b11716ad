"""Actor on the states of a world model, for discrete actions and for continuous actions in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.algorithms.dreamer import latents
from rlcore.algorithms.dreamer.dense import Dense, glorot_linear
from rlcore.algorithms.dreamer.world_keys import MLPSpec, PolicySpec
from rlcore.functional.distributions import Categoricals, Normal, Policy, SquashedNormal, TruncatedNormal
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.nn.action_form import ActionForm
from rlcore.nn.encoder import flatten_actions
from rlcore.spec import ActionSpec

Spread = Callable[[Tensor, Tensor, PolicySpec], Policy]


def scaled_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> Normal:
    """Return a normal with mean tanh(m) and std (max - min) σ(s + init) + min (code of arXiv:2301.04104v1)."""
    std = (form.max_std - form.min_std) * torch.sigmoid(spread + form.init_std) + form.min_std
    return Normal(mean.tanh(), std.log())


def truncated_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> TruncatedNormal:
    """Return a normal truncated to [-1, 1], with mean tanh(m) and std 2 σ((s + init) / 2) + min.

    See the code of arXiv:2010.02193.
    """
    return TruncatedNormal(mean.tanh(), 2 * torch.sigmoid((spread + form.init_std) / 2) + form.min_std)


def squashed_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> SquashedNormal:
    """Return a squashed normal, the tanh of N(mean, std), with mean 5 tanh(m / 5) and std softplus(s + init) + min.

    See arXiv:1912.01603, section 4.
    """
    return SquashedNormal(5 * torch.tanh(mean / 5), (F.softplus(spread + form.init_std) + form.min_std).log())


def plain_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> Normal:
    """Return a normal with mean m and std softplus(s + init) + min."""
    return Normal(mean, (F.softplus(spread + form.init_std) + form.min_std).log())


CONTINUOUS: dict[str, Spread] = {
    "scaled": scaled_normal,
    "trunc_normal": truncated_normal,
    "tanh_normal": squashed_normal,
    "normal": plain_normal,
}


class LatentActor(nn.Module):
    """MLP from model states to a policy: independent categoricals, or a continuous distribution.

    Args:
        inputs: F; features of a state.
        action: action space of the environment.
        layers: hidden layers.
        form: distribution of the policy, and its parameters.
        stretch: scale continuous actions from [-1, 1] to the environment's bounds; false = clip them to the bounds.
        scale: initialization scale of output layers; see `dense.initialise_glorot`.
        rng: CPU generator for the initialization.
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
    ) -> None:
        super().__init__()
        self.action, self.says = action, form
        kind = "discrete" if not action.continuous else "scaled" if stretch else "normal"
        self.form = ActionForm(action, kind)
        outputs = [2 * action.size] if action.continuous else action.nvec
        self.hidden = Dense(inputs, layers, rng)
        self.heads = nn.ModuleList(glorot_linear(self.hidden.output_size, size, rng, scale) for size in outputs)

    def policy(self, feat: Tensor) -> Policy:
        """Return the distribution over actions [..., A] at states [..., F]."""
        hidden, says = self.hidden(feat), self.says
        found = [to_float32(head(hidden.to(head.weight.dtype))) for head in self.heads]
        if self.action.continuous:
            mean, spread = found[0].chunk(2, -1)
            return CONTINUOUS[says.kind](mean, spread, says)
        return Categoricals(torch.cat([latents.unimix(part, says.unimix) for part in found], -1), self.action.nvec)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Draw the noise that one `sample` of actions [*lead, A] uses."""
        uniform = self.says.kind == "trunc_normal"
        draw = rng.exponential if not self.action.continuous else rng.uniform if uniform else rng.normal
        return draw(*lead, self.action.flat_size)

    def clip(self, action: Tensor) -> Tensor:
        """Clip continuous actions to ±`largest` by a scale factor without gradient, so gradients are not cut off."""
        largest = self.says.largest
        if not self.action.continuous or not largest:
            return action
        return action * (largest / action.abs().clamp(min=largest)).detach()

    def flat(self, action: Tensor) -> Tensor:
        """Convert actions [..., A] to the input of the model, [..., A'] float32; discrete actions become one-hot."""
        return flatten_actions(action, self.action, action.ndim - 1)

    def forward(self, feat: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions [N, A] at states [N, F]; also return the model's input [N, A'], with the policy's gradient."""
        policy = self.policy(feat)
        action = policy.sample(noise)
        taken = self.flat(self.clip(action))
        if isinstance(policy, Categoricals):
            p = torch.cat([part.exp() for part in policy.parts], -1)
            taken = taken + (p - p.detach())  # straight-through gradient
        return action, taken
