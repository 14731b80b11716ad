"""Actor and critic of Dreamer V3.5, with the losses on imagined trajectories and on replayed sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.behavior import DreamerBehavior
from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.critic import Critic, join
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.dreamer_v3.learner import actor_loss
from rlcore.algorithms.dreamer.dreamer_v3_5.config import Config
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import initialise
from rlcore.algorithms.dreamer.dreamer_v3_5.networks import make_networks
from rlcore.algorithms.dreamer.imagination import Imagined, imagine
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.functional.returns import gae, lambda_return
from rlcore.functional.stats import LossTerms, reduce_loss
from rlcore.optim.optimizer import Loss, LossOutput, Optimizer
from rlcore.types import Context

STEPS: tuple[str, ...] = ("feat", "action", "weight")  # names of imagined steps, see `Behavior.imagine_returns`


def make_optimizer(
    module: nn.Module, loss: Loss, context: Context[DreamerConfig], config: Config, uses: Sequence[nn.Module]
) -> Optimizer:
    """Create an optimizer of `algo.optimizer`, with adaptive clipping; `uses` are other modules that the loss reads."""
    rule = config.update_rule(config.optimizer)
    return Optimizer(module, loss, rule, context, max_grad_norm=config.optimizer.agc, uses=uses)


class Behavior(DreamerBehavior):
    """Actor and critics of Dreamer V3.5; the losses of the critics are a part of the loss of `Learner`."""

    config: Config

    @property
    def imagined(self) -> tuple[str, ...]:
        """Names of the imagined steps, see `imagine_returns`."""
        return (*STEPS, *(name for critic in self.critics for name in (critic.returns, critic.advantage)))

    def make_critic(self, rng: torch.Generator) -> Dense:
        """Create the critic, with initial weights that are drawn from `rng`."""
        networks, keys = make_networks(self.config, self.world.rssm.sizes[1]), self.config.critic
        critic = networks.dense(self.world.feat_size, keys.layers, rng, self.number.outputs)
        assert critic.output is not None
        initialise(critic, rng, {critic.output: keys.outscale})
        return critic

    def make_optimizers(self, context: Context[DreamerConfig], reads: Sequence[nn.Module]) -> None:
        """Create the optimizer of the actor; the loss that trains the critics (`Learner.loss`) reads `reads`."""
        self.reads = reads
        self.actor_optimizer = make_optimizer(self.actor, self.policy_loss, context, self.config, self.scales)

    def make_modules(self, context: Context[DreamerConfig]) -> Sequence[nn.Module]:
        """Create the scale of the returns of each critic."""
        self.scales = [context.fabric.to_device(ReturnScale(self.config.actor.moments)) for _ in self.critics]
        self.moments = self.scales[0]
        return self.scales

    def predicted_reward(self, imagined: Imagined) -> Tensor:
        """Return the rewards that the world model predicts at the states after each step, [H, L·N]."""
        return self.world.predict_reward(imagined.feat[1:])

    def critic_loss(self, critic: Critic, feat: Tensor, logits: Tensor, returns: Tensor) -> Tensor:
        """Compute the loss of a critic at states, -log p(R | s) - log p(v' | s), [...].

        `feat` [..., F] contains the features of the states, `logits` [..., K] the outputs of the critic, and `returns`
        [...] the λ-returns R. v' is the value that the target critic predicts.
        """
        target_value = self.number.mean(critic.target_network(feat.detach()))
        return self.number.loss(logits, returns) + self.config.critic.slow_regularizer * self.number.loss(
            logits, target_value
        )

    def imagine_returns(
        self, states: ModelState, rng: Noise
    ) -> tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Compute the losses of the critics on trajectories imagined from the model states [L, N].

        Return the loss of each critic [L, N], means to log, and the imagined steps, which are the input of
        `train_actor`: `feat` [H, L·N, F], `action` [H, L·N, A], `weight` [H, L·N], and λ-returns and advantages of each
        critic [H, L·N].
        """
        config, lead = self.config, states.deter.shape[:2]
        with torch.no_grad():  # REINFORCE needs no gradient through the trajectory
            start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
            imagined = imagine(self.world.rssm, self.actor, start, config.horizon, rng)
            feat = imagined.feat  # [H+1, L·N, F]
            discount = config.imagined_gamma * to_float32(self.world.predict_continue(feat)).sigmoid()  # [H+1, L·N]
            rewards = [critic.reward(imagined) for critic in self.critics]  # [H, L·N] each
        weight = discount[:-1].cumprod(0) / config.imagined_gamma  # [H, L·N]
        losses, measures = list[Tensor](), dict[str, Tensor]()
        steps = dict(zip(STEPS, (feat[:-1], imagined.action, weight), strict=True))
        for critic, reward in zip(self.critics, rewards, strict=True):
            logits = critic.network(feat)  # [H+1, L·N, K]
            value = self.number.mean(logits.detach())  # [H+1, L·N]
            returns = lambda_return(reward, discount[1:], value[1:], config.lmbda)  # [H, L·N]
            loss = weight * self.critic_loss(critic, feat[:-1], logits[:-1], returns)
            losses.append(loss.mean(0).unflatten(0, lead))
            steps |= {critic.returns: returns, critic.advantage: returns - value[:-1]}
            measures |= self.measure(critic, reward, value, returns)
        return losses, measures, steps

    def measure(self, critic: Critic, reward: Tensor, value: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """Return means to log about rewards, values and λ-returns of imagined trajectories, [H, N] each."""
        own = {} if self.name else {"Values/return": returns.mean(), "Values/value": value.mean()}
        return own | super().measure(critic, reward, value, returns)

    def policy_loss(self, imagined: dict[str, Tensor]) -> LossTerms:
        """Compute the actor loss (eq. 6) on the steps that `imagine_returns` returns, with scaled advantages."""
        policy, config = self.actor.policy(imagined["feat"]), self.config
        entropy = policy.entropy()
        objective = policy.logprob(imagined["action"]) * imagined["advantage"]
        loss = actor_loss(objective, entropy, imagined["weight"], config.actor.ent_coef).flatten()
        logged = {"Loss__policy_loss": loss, "Actor__entropy": entropy.flatten()}
        return reduce_loss(config.scale("policy") * loss, torch.ones_like(loss), **logged)

    def train_actor(self, imagined: dict[str, Tensor]) -> LossOutput:
        """Update the scales of returns over all ranks, and train the actor on the steps of `imagine_returns`."""
        advantages = [
            imagined[critic.advantage] / scale(imagined[critic.returns], self.ranks) * critic.weight
            for critic, scale in zip(self.critics, self.scales, strict=True)
        ]
        steps = {name: imagined[name] for name in STEPS}
        return self.actor_optimizer.minimize(steps | {"advantage": sum(advantages[1:], advantages[0])})

    def recorded_reward(self, critic: Critic, feat: Tensor, batch: Segment) -> Tensor:
        """Return the rewards of the recorded steps to rows 1, 2, … of a batch, [L-1, N]; `feat` is [L, N, F]."""
        if critic.task:
            return batch.reward[1:]
        with torch.no_grad():
            return critic.reward(Imagined(feat, batch.before[1:], batch.before[1:]))

    def replay_loss(self, critic: Critic, feat: Tensor, batch: Segment, bootstrap: Tensor) -> Tensor:
        """Compute the loss of a critic on a replayed sequence; its λ-returns bootstrap from imagined ones.

            R_t = r_t+1 + γ c_t+1 ((1 - λ) R'_t+1 + λ R_t+1)        R_L = R'_L

        A return does not pass the end of an episode. The last row has no return, and its loss is 0; the other rows are
        weighted such that the mean of the result is the mean over them.

        Args:
            critic: critic to train.
            feat: [L, N, F]; features of model states, with gradient if the loss trains the world model.
            batch: sequences [L, N].
            bootstrap: [L, N]; λ-returns R' of trajectories that are imagined from the model states.

        Returns:
            Loss in nats, [L, N].
        """
        ends = torch.cat([batch.is_first[1:], torch.zeros_like(batch.is_first[:1])])  # the next row opens an episode
        discount = self.config.gamma * (~batch.terminated[1:]).to(bootstrap)
        trace = self.config.lmbda * (~ends[1:]).to(bootstrap)
        value = bootstrap[:-1]
        reward = self.recorded_reward(critic, feat, batch)
        returns = gae(reward, discount, value, bootstrap[1:], trace, "auto") + value  # [L-1, N]
        feat = feat[:-1]
        loss = self.critic_loss(critic, feat, critic.network(feat), returns) * (~ends[:-1]).to(returns)
        return torch.cat([loss, torch.zeros_like(loss[:1])]) * (len(bootstrap) / len(loss))

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: the networks, the scales of returns, and the optimizer of the actor."""
        return self.networks() | {self.named("actor_optimizer"): self.actor_optimizer}

    def networks(self) -> dict[str, protocols.Stateful]:
        """Return the components from which another run can start: also the scales of returns."""
        names = [join(self.named("moments"), critic.key) for critic in self.critics]
        return {**super().networks(), **dict(zip(names, self.scales, strict=True))}
