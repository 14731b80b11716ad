"""Agents of the Dreamers: an actor selects actions from the state of a world model, with or without exploration."""

from __future__ import annotations

import copy
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.latents import Latent
from rlcore.algorithms.dreamer.networks import DEFAULT, Networks
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.world_keys import MLPSpec
from rlcore.algorithms.dreamer.world_model import WorldModel
from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import ScalarHead
from rlcore.nn.action_masks import choose, disturb
from rlcore.spec import ArraySpec, EnvSpec


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

        Return the next carry, actions [B, A], and the result of `extras`. `obs` maps observation keys to [B, ...]. If
        `greedy` is true or `rng` is None, nothing is sampled.
        """
        rssm, actor, count = self.world.rssm, self.actor, is_first.shape[0]
        noise = None if greedy or rng is None else rssm.noise(rng, count)
        state = ModelState(carry["deter"], carry["stoch"])
        state = rssm.obs_step(
            self.world.encoder(self.world.encoder.preprocess(obs, 1)), carry["action"], is_first, noise, state
        )
        policy, acts = actor.policy(state.feat), None if greedy or rng is None else actor.noise(rng, count)
        if self.masks and isinstance(policy, Categoricals):
            action = choose(self.spec, policy.parts, obs, acts)
        else:
            action = policy.mode() if acts is None else actor.clip(policy.sample(acts))
        carry = {"deter": state.deter, "stoch": state.stoch, "action": actor.flat(action)}
        return carry, action, self.extras(state)

    def extras(self, state: ModelState) -> dict[str, Tensor]:
        """Return outputs to store with the rows of the replay buffer, name -> [B, ...]; the base class has none.

        `state` contains the model states [B, ...] in which the actions were selected.
        """
        return {}

    @property
    def stored(self) -> dict[str, ArraySpec]:
        """Shape and dtype of `extras` of one environment; empty if there are none."""
        return {}

    def with_actor(self, actor: LatentActor) -> Self:
        """Return an agent with this world model and another actor of the same form as this agent's actor."""
        agent = copy.copy(self)
        agent._modules = self._modules.copy()
        agent.actor = actor
        return agent

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to the environment's actions [B, *shape], within the action bounds."""
        return self.actor.form.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.actor.form.from_env(action)


class DreamerAgent(WorldAgent):
    """Agent with a world model and an actor, built from the config of a Dreamer algorithm.

    Args:
        config: config of the algorithm.
        spec: spec of the environment.
        distribution: `distribution.type`; "auto" is the algorithm's default for the action space.
        rng: CPU generator for the initialization.
        latent: distribution of the stochastic part of the model state.
        reward: distribution of predicted rewards.
        value: distribution of the values that the critic predicts; None = `reward`.
        scales: initialization scale of all output layers except the reward head's, and scale of the reward head's
            output layer; see `dense.initialise_glorot`.

    Attributes:
        networks: factories of the networks of the world model and of the actor. A subclass can set another recurrent
            cell, other norms or other CNNs.
    """

    networks: ClassVar[Networks] = DEFAULT

    def __init__(
        self,
        config: DreamerConfig,
        spec: EnvSpec,
        distribution: str,
        rng: torch.Generator,
        latent: Latent,
        reward: ScalarHead,
        value: ScalarHead | None = None,
        scales: tuple[float | None, float | None] = (1.0, 1.0),
    ) -> None:
        images, vectors = config.cnn_keys, config.mlp_keys
        keys = (images.encoder, vectors.encoder), (images.decoded, vectors.decoded)
        networks = self.make_networks(config, latent)
        world = WorldModel(config.world_model, spec, *keys, latent, reward, scales, rng, networks)
        form, layers = config.actor.policy(config.policy_kind(spec.action, distribution)), config.actor.layers
        form_of = (world.feat_size, spec.action, layers, form, config.normalize_actions, scales[0])
        actor = partial(LatentActor, *form_of, norm=networks.norm)
        super().__init__(world, actor(rng=rng), value)
        self._actor_of, self._networks = actor, networks

    def make_actor(self, rng: torch.Generator) -> LatentActor:
        """Return another actor of the same form, with new weights."""
        return self._actor_of(rng=rng)

    def make_mlp(
        self, inputs: int, layers: MLPSpec, rng: torch.Generator, outputs: int, scale: float | None = 1.0
    ) -> Dense:
        """Create an MLP with the norm and the initialization of the algorithm; the arguments are those of `Dense`."""
        return self._networks.dense(inputs, layers, rng, outputs, scale)

    def make_networks(self, config: DreamerConfig, latent: Latent) -> Networks:
        """Return the factories of the networks; a subclass can create them from its config.

        `latent` is the distribution of the stochastic part of the model state. This method is called by the constructor
        before `nn.Module.__init__`.
        """
        return self.networks


class Amount(nn.Module):
    """Amount of exploration noise. It is a module buffer, so that a policy reads the current value at every call."""

    value: Tensor

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(amount))


class Explorer(nn.Module):
    """Agent whose actions get exploration noise (arXiv:1912.01603, section 6).

    Normal noise with standard deviation `amount` is added to continuous actions, which are then clipped to [-1, 1]
    (`additive_gaussian` in the authors' code). Each discrete sub-action is replaced by a uniformly random one with
    probability `amount` (`epsilon_greedy`). The carry, which is the agent's state between time steps, contains the
    action with noise.

    Args:
        agent: agent that selects the actions.
        amount: initial amount of noise: a standard deviation or a probability.
    """

    def __init__(self, agent: WorldAgent, amount: float) -> None:
        super().__init__()
        self.agent, self.amount, self.keys = agent, Amount(amount), agent.keys

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        """Return the agent's initial carry for `batch_size` environments."""
        return self.agent.initial(batch_size)

    def act(
        self,
        carry: dict[str, Tensor],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: Noise | None,
        greedy: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Select actions with the agent, and add noise unless `rng` is None or `greedy` is true.

        Return the next carry, actions [B, A], and an empty dict (other agents return extra outputs in it). `obs` maps
        observation keys to [B, ...].
        """
        carry, action, extras = self.agent.act(carry, obs, is_first, rng, greedy)
        if rng is not None and not greedy:
            action = self.disturb(action, rng, obs)
            carry = carry | {"action": self.agent.actor.flat(action)}
        return carry, action, extras

    def disturb(self, action: Tensor, rng: Noise, obs: dict[str, Tensor]) -> Tensor:
        """Add exploration noise to actions [B, A].

        If the agent uses action masks, random discrete actions obey the masks in `obs`.
        """
        actor, amount = self.agent.actor, self.amount.value
        if actor.action.continuous:
            return (action + amount * rng.normal(*action.shape)).clamp(-1, 1)
        share = rng.uniform(*action.shape)
        if self.agent.masks:
            return disturb(self.agent.spec, action, obs, share, rng.uniform(*action.shape) < amount)
        pairs = zip(share.split(1, -1), actor.action.nvec, strict=True)
        other = torch.cat([(part * n).long().clamp(max=n - 1) for part, n in pairs], -1)
        return torch.where(rng.uniform(*action.shape) < amount, other, action)

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to the environment's actions [B, *shape], within the action bounds."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]."""
        return self.agent.from_env(action)


def make_behavior_policy(agent: WorldAgent, config: DreamerConfig) -> WorldAgent | Explorer:
    """Return the policy that collects data: the agent, with exploration noise if the config enables it."""
    amount = config.actor.exploration(0)
    return Explorer(agent, amount) if amount else agent
