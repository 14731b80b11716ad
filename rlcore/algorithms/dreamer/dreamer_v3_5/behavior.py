"""Actor and critic of Dreamer V3.5, with the losses on imagined trajectories and on replayed sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.behavior import DreamerBehavior, Imagined, imagine
from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.dreamer_v3.learner import actor_loss
from rlcore.algorithms.dreamer.dreamer_v3_5.config import Config
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import initialise
from rlcore.algorithms.dreamer.dreamer_v3_5.networks import make_networks
from rlcore.algorithms.dreamer.learner import Segment
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.functional.returns import gae, lambda_return
from rlcore.functional.stats import LossTerms, reduce_loss
from rlcore.optim.optimizer import Loss, LossOutput, Optimizer
from rlcore.types import Context

# Names of the imagined steps, see `Behavior.imagine_returns`.
IMAGINED: tuple[str, ...] = ("feat", "action", "weight", "returns", "advantage")


def make_optimizer(
    module: nn.Module, loss: Loss, context: Context[DreamerConfig], config: Config, uses: Sequence[nn.Module]
) -> Optimizer:
    """Create an optimizer of `algo.optimizer`, with adaptive clipping; `uses` are other modules that the loss reads."""
    rule = config.update_rule(config.optimizer)
    return Optimizer(module, loss, rule, context, max_grad_norm=config.optimizer.agc, uses=uses)


class Behavior(DreamerBehavior):
    """Actor and critic of Dreamer V3.5; the loss of the critic is a part of the loss of `Learner`."""

    config: Config

    def make_critic(self, rng: torch.Generator) -> Dense:
        """Create the critic, with initial weights that are drawn from `rng`."""
        networks, keys = make_networks(self.config, self.world.rssm.sizes[1]), self.config.critic
        critic = networks.dense(self.world.feat_size, keys.layers, rng, self.number.outputs)
        assert critic.output is not None
        initialise(critic, rng, {critic.output: keys.outscale})
        return critic

    def make_optimizers(self, context: Context[DreamerConfig], reads: Sequence[nn.Module]) -> None:
        """Create the optimizer of the actor; the loss that trains the critic (`Learner.loss`) reads `reads`."""
        self.reads = reads
        self.actor_optimizer = make_optimizer(self.actor, self.policy_loss, context, self.config, [self.moments])

    def make_modules(self, context: Context[DreamerConfig]) -> Sequence[nn.Module]:
        """Create the scale of returns."""
        self.moments = ReturnScale(self.config.actor.moments)
        context.fabric.to_device(self.moments)
        return [self.moments]

    def predicted_reward(self, imagined: Imagined) -> Tensor:
        """Return the rewards that the world model predicts at the states after each step, [H, L·N]."""
        return self.world.predict_reward(imagined.feat[1:])

    def critic_loss(self, feat: Tensor, logits: Tensor, returns: Tensor) -> Tensor:
        """Compute the critic loss of states, -log p(R | s) - log p(v' | s), [...].

        `feat` [..., F] contains the features of the states, `logits` [..., K] the outputs of the critic, and `returns`
        [...] the λ-returns R. v' is the value that the target critic predicts.
        """
        slow = self.number.mean(self.target_critic(feat.detach()))
        return self.number.loss(logits, returns) + self.config.critic.slow_regularizer * self.number.loss(logits, slow)

    def imagine_returns(self, states: ModelState, rng: Noise) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the critic loss on trajectories imagined from the model states [L, N].

        Return losses and quantities to log, name -> [L, N], and the imagined steps, which are the input of
        `train_actor`: `feat` [H, L·N, F], `action` [H, L·N, A], `weight`, `returns` and `advantage` [H, L·N].
        """
        config, lead = self.config, states.deter.shape[:2]
        with torch.no_grad():  # REINFORCE needs no gradient through the trajectory
            start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
            imagined = imagine(self.world.rssm, self.actor, start, config.horizon, rng)
            feat = imagined.feat  # [H+1, L·N, F]
            discount = config.imagined_gamma * to_float32(self.world.predict_continue(feat)).sigmoid()  # [H+1, L·N]
            reward = self.reward(imagined)  # [H, L·N]
        logits = self.critic(feat)  # [H+1, L·N, K]
        value = self.number.mean(logits.detach())  # [H+1, L·N]
        returns = lambda_return(reward, discount[1:], value[1:], config.lmbda)  # [H, L·N]
        weight = discount[:-1].cumprod(0) / config.imagined_gamma  # [H, L·N]
        loss = weight * self.critic_loss(feat[:-1], logits[:-1], returns)
        terms = {"Loss__value_loss": loss, "Values__return": returns, "Values__value": value}
        steps = dict(zip(IMAGINED, (feat[:-1], imagined.action, weight, returns, returns - value[:-1]), strict=True))
        return {name: x.mean(0).unflatten(0, lead) for name, x in terms.items()}, steps

    def policy_loss(self, imagined: dict[str, Tensor]) -> LossTerms:
        """Compute the actor loss (eq. 6) on the steps that `imagine_returns` returns, with scaled advantages."""
        policy, config = self.actor.policy(imagined["feat"]), self.config
        entropy = policy.entropy()
        objective = policy.logprob(imagined["action"]) * imagined["advantage"]
        loss = actor_loss(objective, entropy, imagined["weight"], config.actor.ent_coef).flatten()
        logged = {"Loss__policy_loss": loss, "Actor__entropy": entropy.flatten()}
        return reduce_loss(config.scale("policy") * loss, torch.ones_like(loss), **logged)

    def train_actor(self, imagined: dict[str, Tensor]) -> LossOutput:
        """Update the scale of returns over all ranks, and train the actor on the steps of `imagine_returns`."""
        advantage = imagined["advantage"] / self.moments(imagined["returns"], self.ranks)
        return self.actor_optimizer.minimize(imagined | {"advantage": advantage})

    def replay_loss(self, states: ModelState, batch: Segment, bootstrap: Tensor) -> Tensor:
        """Compute the critic loss on a replayed sequence, whose λ-returns bootstrap from imagined ones.

            R_t = r_t+1 + γ c_t+1 ((1 - λ) R'_t+1 + λ R_t+1)        R_L = R'_L

        A return does not pass the end of an episode. The last row has no return, and its loss is 0; the other rows are
        weighted such that the mean of the result is the mean over them.

        Args:
            states: [L, N, ...]; model states, with gradient if the loss trains the world model.
            batch: sequences [L, N].
            bootstrap: [L, N]; λ-returns R' of trajectories that are imagined from the model states.

        Returns:
            Loss in nats, [L, N].
        """
        ends = torch.cat([batch.is_first[1:], torch.zeros_like(batch.is_first[:1])])  # the next row opens an episode
        discount = self.config.gamma * (~batch.terminated[1:]).to(bootstrap)
        trace = self.config.lmbda * (~ends[1:]).to(bootstrap)
        value = bootstrap[:-1]
        returns = gae(batch.reward[1:], discount, value, bootstrap[1:], trace, "auto") + value  # [L-1, N]
        feat = states.at(slice(-1)).feat
        feat = feat if self.config.critic.replay_grad else feat.detach()
        loss = self.critic_loss(feat, self.critic(feat), returns) * (~ends[:-1]).to(returns)
        return torch.cat([loss, torch.zeros_like(loss[:1])]) * (len(bootstrap) / len(loss))

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: the networks, the scale of returns, and the optimizer of the actor."""
        return self.networks() | {self.named("actor_optimizer"): self.actor_optimizer}

    def networks(self) -> dict[str, protocols.Stateful]:
        """Return the components from which another run can start: also the scale of returns."""
        return {**super().networks(), self.named("moments"): self.moments}
