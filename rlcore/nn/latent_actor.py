"""Actor on the states of a world model: discrete actions, or continuous ones in -1 to 1."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcore.functional import latents
from rlcore.functional.distributions import Categoricals, Normal, Policy, SquashedNormal, TruncatedNormal
from rlcore.functional.noise import Noise
from rlcore.functional.precision import widen
from rlcore.nn.action_form import ActionForm
from rlcore.nn.dense import Dense, glorot_linear
from rlcore.nn.encoder import flatten_actions
from rlcore.nn.world_keys import Layers, PolicyForm
from rlcore.spec import ActionSpec

Spread = Callable[[Tensor, Tensor, PolicyForm], Policy]


def scaled_normal(mean: Tensor, spread: Tensor, form: PolicyForm) -> Normal:
    """Mean tanh(m), std (max - min) σ(s + init) + min (arXiv:2301.04104v1's code)."""
    std = (form.max_std - form.min_std) * torch.sigmoid(spread + form.init_std) + form.min_std
    return Normal(mean.tanh(), std.log())


def truncated_normal(mean: Tensor, spread: Tensor, form: PolicyForm) -> TruncatedNormal:
    """Mean tanh(m), std 2 σ((s + init) / 2) + min, cut off at -1 and 1 (arXiv:2010.02193's code)."""
    return TruncatedNormal(mean.tanh(), 2 * torch.sigmoid((spread + form.init_std) / 2) + form.min_std)


def squashed_normal(mean: Tensor, spread: Tensor, form: PolicyForm) -> SquashedNormal:
    """Mean 5 tanh(m / 5), std softplus(s + init) + min, before a tanh (arXiv:1912.01603, section 4)."""
    return SquashedNormal(5 * torch.tanh(mean / 5), (F.softplus(spread + form.init_std) + form.min_std).log())


def plain_normal(mean: Tensor, spread: Tensor, form: PolicyForm) -> Normal:
    """Mean m, std softplus(s + init) + min."""
    return Normal(mean, (F.softplus(spread + form.init_std) + form.min_std).log())


CONTINUOUS: dict[str, Spread] = {
    "scaled": scaled_normal,
    "trunc_normal": truncated_normal,
    "tanh_normal": squashed_normal,
    "normal": plain_normal,
}


class LatentActor(nn.Module):
    """A perceptron from states to a policy: independent categoricals, or a distribution around -1 to 1.

    Args:
        inputs: F, of a state.
        action: the environment's action.
        layers: hidden ones.
        form: of the policy.
        stretch: continuous actions of -1 to 1 are stretched onto the environment's bounds; false: clipped into them.
        scale: of output weights, as `rlcore.nn.dense.initialise_glorot` has it.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self,
        inputs: int,
        action: ActionSpec,
        layers: Layers,
        form: PolicyForm,
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
        """The distribution over actions [..., A] that states [..., F] call for."""
        hidden, says = self.hidden(feat), self.says
        found = [widen(head(hidden.to(head.weight.dtype))) for head in self.heads]
        if self.action.continuous:
            mean, spread = found[0].chunk(2, -1)
            return CONTINUOUS[says.kind](mean, spread, says)
        return Categoricals(torch.cat([latents.unimix(part, says.unimix) for part in found], -1), self.action.nvec)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Noise for actions [*lead, A]."""
        uniform = self.says.kind == "trunc_normal"
        draw = rng.exponential if not self.action.continuous else rng.uniform if uniform else rng.normal
        return draw(*lead, self.action.flat_size)

    def clip(self, action: Tensor) -> Tensor:
        """Continuous actions brought to the largest that the model is given, without a gradient of their own."""
        largest = self.says.largest
        if not self.action.continuous or not largest:
            return action
        return action * (largest / action.abs().clamp(min=largest)).detach()

    def flat(self, action: Tensor) -> Tensor:
        """Actions [..., A] as the model takes them, [..., A'] float32: discrete ones one-hot."""
        return flatten_actions(action, self.action, action.ndim - 1)

    def forward(self, feat: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """States [N, F] -> actions [N, A], and as the model takes them [N, A'], with the gradient of the policy."""
        policy = self.policy(feat)
        action = policy.sample(noise)
        taken = self.flat(self.clip(action))
        if isinstance(policy, Categoricals):
            p = torch.cat([part.exp() for part in policy.parts], -1)
            taken = taken + (p - p.detach())  # straight through
        return action, taken
