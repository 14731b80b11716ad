"""Agent with a world model; its actor selects actions from the state of the world model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_model import WorldModel
from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import ScalarHead
from rlcore.nn.action_masks import choose


class WorldAgent(nn.Module):
    """Agent with a world model and an actor.

    The carry, which is the agent's state between time steps, contains the model state and the previous action. For a
    greedy action, the stochastic part of the model state is the mode of the posterior, and the action is the mode of
    the policy. With the option `masked`, actions in the environment obey the environment's action masks; actions in
    imagined trajectories are not masked.

    Args:
        world: world model.
        actor: actor that selects actions from model states.
        number: distribution of the values that a critic predicts; None = the distribution of predicted rewards.
    """

    def __init__(self, world: WorldModel, actor: LatentActor, number: ScalarHead | None = None) -> None:
        super().__init__()
        self.world, self.actor, self.number = world, actor, number or world.number
        self.spec = world.encoder.spec
        self.masks = self.spec.mask_keys if actor.says.masked else ()
        self.keys = (*world.encoder.images, *world.encoder.vectors, *self.masks)

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        """Return a carry of zeros, name -> [B, ...]; `act` ignores it at the first time step of an episode."""
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
        """Select one action for each of B environments.

        Return the next carry, actions [B, A], and an empty dict (other agents return extra outputs in it). `obs` maps
        observation keys to [B, ...]. If `greedy` is true or `rng` is None, nothing is sampled.
        """
        rssm, actor, count = self.world.rssm, self.actor, len(is_first)
        noise = None if greedy or rng is None else rssm.noise(rng, count)
        state = ModelState(carry["deter"], carry["stoch"])
        state = rssm.obs_step(
            self.world.encoder(self.world.encoder.preprocess(obs, 1)), carry["action"], is_first, noise, state
        )
        policy, acts = actor.policy(state.feat), None if greedy or rng is None else actor.noise(rng, count)
        if self.masks and isinstance(policy, Categoricals):
            action = choose(self.spec, policy, obs, acts)
        else:
            action = policy.mode() if acts is None else actor.clip(policy.sample(acts))
        return {"deter": state.deter, "stoch": state.stoch, "action": actor.flat(action)}, action, {}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to the environment's actions [B, *shape], within the action bounds."""
        return self.actor.form.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.actor.form.from_env(action)
