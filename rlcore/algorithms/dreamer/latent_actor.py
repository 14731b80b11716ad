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
    """Return a normal distribution, as in the code of arXiv:2301.04104v1.

    Its mean is tanh(mean), and its std is (max_std - min_std) σ(spread + init_std) + min_std, with fields of `form`.
    """
    std = (form.max_std - form.min_std) * torch.sigmoid(spread + form.init_std) + form.min_std
    return Normal(mean.tanh(), std.log())


def truncated_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> TruncatedNormal:
    """Return a normal distribution that is truncated to [-1, 1], as in the code of arXiv:2010.02193.

    Its mean is tanh(mean), and its std is 2 σ((spread + init_std) / 2) + min_std, with fields of `form`.
    """
    return TruncatedNormal(mean.tanh(), 2 * torch.sigmoid((spread + form.init_std) / 2) + form.min_std)


def squashed_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> SquashedNormal:
    """Return a squashed normal, the tanh of a normal distribution (arXiv:1912.01603, section 4).

    Before the tanh, the mean is 5 tanh(mean / 5), and the std is softplus(spread + init_std) + min_std, with fields of
    `form`.
    """
    return SquashedNormal(5 * torch.tanh(mean / 5), (F.softplus(spread + form.init_std) + form.min_std).log())


def plain_normal(mean: Tensor, spread: Tensor, form: PolicySpec) -> Normal:
    """Return a normal distribution with this mean and std softplus(spread + init_std) + min_std (fields of `form`)."""
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
        """Draw the noise for sampling actions [*lead, A] once."""
        uniform = self.says.kind == "trunc_normal"
        draw = rng.exponential if not self.action.continuous else rng.uniform if uniform else rng.normal
        return draw(*lead, self.action.flat_size)

    def clip(self, action: Tensor) -> Tensor:
        """Scale continuous actions that exceed ±`largest` down to this limit.

        The scale factor has no gradient, so the gradient of a clipped action is not 0.
        """
        largest = self.says.largest
        if not self.action.continuous or not largest:
            return action
        return action * (largest / action.abs().clamp(min=largest)).detach()

    def flat(self, action: Tensor) -> Tensor:
        """Convert actions [..., A] to the input of the model, [..., A'] float32; discrete actions become one-hot."""
        return flatten_actions(action, self.action, action.ndim - 1)

    def forward(self, feat: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions [N, A] at states [N, F].

        Return the actions, and the same actions in the format of the model's input [N, A'], through which gradients
        reach the policy.
        """
        policy = self.policy(feat)
        action = policy.sample(noise)
        taken = self.flat(self.clip(action))
        if isinstance(policy, Categoricals):
            p = torch.cat([part.exp() for part in policy.parts], -1)
            taken = taken + (p - p.detach())  # straight-through gradient
        return action, taken
