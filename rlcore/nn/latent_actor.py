"""Actor on the states of a world model: discrete actions with a uniform share, continuous ones in -1 to 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.functional import latents
from rlcore.functional.distributions import Categoricals, Normal, Policy
from rlcore.functional.noise import Noise
from rlcore.functional.precision import widen
from rlcore.nn.action_form import ActionForm
from rlcore.nn.dense import Dense, linear
from rlcore.nn.encoder import flatten_actions
from rlcore.nn.world_keys import LatentActorConfig
from rlcore.spec import ActionSpec


class LatentActor(nn.Module):
    """A perceptron from states to a policy (arXiv:2301.04104v1, "Actor critic learning").

    Discrete: independent categoricals, each with a share of a uniform one. Continuous: normals with the mean tanh(m)
    and the std (max - min) σ(s + init) + min, whose samples the model and the environment get clipped.

    Args:
        inputs: F, of a state.
        action: the environment's action.
        config: layers, spread, unimix.
        stretch: continuous actions of -1 to 1 are stretched onto the environment's bounds; false: clipped into them.
        scale: of output weights, as `rlcore.nn.dense.initialise` has it.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self,
        inputs: int,
        action: ActionSpec,
        config: LatentActorConfig,
        stretch: bool,
        scale: float | None,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.action, self.config = action, config
        kind = "discrete" if not action.continuous else "scaled" if stretch else "normal"
        self.form = ActionForm(action, kind)
        outputs = [2 * action.size] if action.continuous else action.nvec
        self.hidden = Dense(inputs, config.layers, rng)
        self.heads = nn.ModuleList(linear(self.hidden.output_size, size, rng, scale) for size in outputs)

    def policy(self, feat: Tensor) -> Policy:
        """The distribution over actions [..., A] that states [..., F] call for."""
        hidden, config = self.hidden(feat), self.config
        found = [widen(head(hidden.to(head.weight.dtype))) for head in self.heads]
        if not self.action.continuous:
            return Categoricals(
                torch.cat([latents.unimix(part, config.unimix) for part in found], -1), self.action.nvec
            )
        mean, spread = found[0].chunk(2, -1)
        std = (config.max_std - config.min_std) * torch.sigmoid(spread + config.init_std) + config.min_std
        return Normal(mean.tanh(), std.log())

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """What the actions [*lead, A] need."""
        draw = rng.normal if self.action.continuous else rng.exponential
        return draw(*lead, self.action.flat_size)

    def clip(self, action: Tensor) -> Tensor:
        """Continuous actions brought to the largest that the model is given, without a gradient of their own."""
        largest = self.config.action_clip
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
