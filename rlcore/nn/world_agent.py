"""Agent around a world model: acts by the state that the model has of an episode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import choose
from rlcore.nn.latent_actor import LatentActor
from rlcore.nn.rssm import ModelState
from rlcore.nn.world_model import Number, WorldModel


class WorldAgent(nn.Module):
    """World model and actor. Its carry: the model's state, and the action before, laid flat.

    Greedy, both the latent and the action are the most likely ones. A masked actor takes choices that the environment's
    masks allow; what the model imagines has none.

    Args:
        world: whose states it acts on.
        actor: who acts.
        number: form in which a critic tells the value of a state; None: that of the model's reward.
    """

    def __init__(self, world: WorldModel, actor: LatentActor, number: Number | None = None) -> None:
        super().__init__()
        self.world, self.actor, self.number = world, actor, number or world.number
        self.spec = world.encoder.spec
        self.masks = self.spec.mask_keys if actor.says.masked else ()
        self.keys = (*world.encoder.images, *world.encoder.vectors, *self.masks)

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        """Zeros, which an episode's first row forgets."""
        deter, stoch = self.world.rssm.sizes
        sizes = {"deter": deter, "stoch": stoch, "action": self.world.rssm.actions}
        return {name: torch.zeros(batch_size, size) for name, size in sizes.items()}

    def act(
        self,
        carry: dict[str, Tensor],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: Noise | None,
        greedy: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> the carry after it, actions [B, A], no extras."""
        rssm, actor, count = self.world.rssm, self.actor, len(is_first)
        noise: Any = None if greedy or rng is None else rssm.noise(rng, count)
        state = ModelState(carry["deter"], carry["stoch"])
        state = rssm.follow(self.world.encoder(self.world.encoder.see(obs, 1)), carry["action"], is_first, noise, state)
        policy, acts = actor.policy(state.feat), None if greedy or rng is None else actor.noise(rng, count)
        if self.masks and isinstance(policy, Categoricals):
            action = choose(self.spec, policy, obs, acts)
        else:
            action = policy.mode() if acts is None else actor.clip(policy.sample(acts))
        return {"deter": state.deter, "stoch": state.stoch, "action": actor.flat(action)}, action, {}

    def to_env(self, action: Tensor) -> Tensor:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.actor.form.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] of the environment -> [B, A] as this agent says it."""
        return self.actor.form.from_env(action)
