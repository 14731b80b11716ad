"""Dreamer V3.5: Mastering Diverse Control Tasks through World Models. Hafner et al. 2025, arXiv:2301.04104v2.

This is Dreamer V3 as published in Nature (doi 10.1038/s41586-025-08744-2), with the equation numbers of that version.

Equations of the paper and the code that implements them:
    eq. 1, recurrent state-space model       rssm.RSSM, networks.BlockGRU
    eq. 2-3, loss of the world model         Learner.model_terms, dreamer_v3.learner.kl_loss
    eq. 4-5, critic and λ-returns            Behavior.imagination_losses, rlcore.functional.returns.lambda_return
    eq. 6-7, actor and scale of returns      dreamer_v3.learner.actor_loss, return_scale.ReturnScale
    eq. 8-9, symlog predictions              rlcore.functional.scalars, world_model.KeyEncoder.preprocess
    eq. 10-11, two-hot predictions           rlcore.functional.scalars.TwoHot
    "Critic learning", replayed sequences    Behavior.replay_loss

One optimizer minimizes the sum of all losses (`Learner.loss`). Each row of the replay buffer has the model state that
the agent inferred there. A sequence starts from the state of the row before it, and the new states are written back:

    row of the batch      0      1      2      ...    L
    stored state          s0     -      -             -          start; its action leads to row 1
    new state                    s1     s2            sL         written back; imagination starts from each of them
    replayed return              R1     R2            -          the last row has no reward after it

Differences from the paper, which the authors' code of 2025 and SheepRL's `dreamer_v3_5` have too:
    β₂ of the optimizer is 0.999, and the learning rate of its first step is 0;
    the scale of returns is not corrected for its start at 0;
    the gradient of the loss on replayed sequences reaches the world model (`critic.replay_grad`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.agent import make_behavior_policy
from rlcore.algorithms.dreamer.behavior import DreamerBehavior, Imagined, imagine
from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.dense import Dense
from rlcore.algorithms.dreamer.dreamer_v3.learner import actor_loss, kl_loss
from rlcore.algorithms.dreamer.dreamer_v3_5.agent import STATES, Agent
from rlcore.algorithms.dreamer.dreamer_v3_5.config import Config
from rlcore.algorithms.dreamer.dreamer_v3_5.layers import initialise
from rlcore.algorithms.dreamer.dreamer_v3_5.networks import make_networks
from rlcore.algorithms.dreamer.latents import categorical_measures
from rlcore.algorithms.dreamer.learner import EXTRAS, DreamerLearner, Segment, memory_and_plan
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.data.replay import Replay
from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.functional.returns import gae, lambda_return
from rlcore.functional.scalars import squared_distance
from rlcore.functional.stats import LossTermsAux, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.types import Batch, Context, Metrics, TrainingSchedule

__all__ = ["Agent", "Behavior", "Config", "Learner", "build", "make_behavior_policy"]


class Behavior(DreamerBehavior):
    """Actor and critic of Dreamer V3.5; their losses are a part of the loss of `Learner`."""

    config: Config

    def make_critic(self, rng: torch.Generator) -> Dense:
        """Create the critic, with initial weights that are drawn from `rng`."""
        networks, keys = make_networks(self.config, self.world.rssm.sizes[1]), self.config.critic
        critic = networks.dense(self.world.feat_size, keys.layers, rng, self.number.outputs)
        assert critic.output is not None
        initialise(critic, rng, {critic.output: keys.outscale})
        return critic

    def make_optimizers(self, context: Context[DreamerConfig], reads: Sequence[nn.Module]) -> None:
        """Store the modules that the losses read; the optimizer of the learner trains actor and critic."""
        self.reads = reads

    def make_modules(self, context: Context[DreamerConfig]) -> Sequence[nn.Module]:
        """Create the scale of returns, which is updated when the losses are computed."""
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

    def imagination_losses(self, states: ModelState, rng: Noise) -> tuple[dict[str, Tensor], Tensor]:
        """Compute the losses of actor and critic on trajectories imagined from the model states [L, N].

        Return losses and quantities to log, name -> [L, N], and the λ-returns of the model states, [L, N].
        """
        config, lead = self.config, states.deter.shape[:2]
        with torch.no_grad():  # REINFORCE needs no gradient through the trajectory
            start = ModelState(*(part.flatten(0, 1) for part in states))  # [L·N, ...]
            imagined = imagine(self.world.rssm, self.actor, start, config.horizon, rng)
            feat, action = imagined.feat, imagined.action  # [H+1, L·N, F], [H, L·N, A]
            discount = config.imagined_gamma * to_float32(self.world.predict_continue(feat)).sigmoid()  # [H+1, L·N]
            reward = self.reward(imagined)  # [H, L·N]
        logits = self.critic(feat)  # [H+1, L·N, K]
        value = self.number.mean(logits.detach())  # [H+1, L·N]
        returns = lambda_return(reward, discount[1:], value[1:], config.lmbda)  # [H, L·N]
        weight = discount[:-1].cumprod(0) / config.imagined_gamma  # [H, L·N]
        advantage = (returns - value[:-1]) / self.moments(returns, self.ranks)
        policy = self.actor.policy(feat[:-1])
        entropy = policy.entropy()
        found = {
            "Loss__policy_loss": actor_loss(policy.logprob(action) * advantage, entropy, weight, config.actor.ent_coef),
            "Loss__value_loss": weight * self.critic_loss(feat[:-1], logits[:-1], returns),
            "Actor__entropy": entropy,
            "Values__return": returns,
            "Values__value": value,
        }
        return {name: x.mean(0).unflatten(0, lead) for name, x in found.items()}, returns[0].unflatten(0, lead)

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
        """Return the stateful components: the networks and the scale of returns."""
        return self.networks()

    def networks(self) -> dict[str, protocols.Stateful]:
        """Return the components from which another run can start: also the scale of returns."""
        return {**super().networks(), self.named("moments"): self.moments}


class Learner(DreamerLearner):
    """Dreamer V3.5 learner: one gradient step of one optimizer per batch of sequences."""

    agent_class, behavior_class = Agent, Behavior
    agent: Agent
    behaviors: list[Behavior]
    config: Config

    def make_optimizers(self, context: Context[DreamerConfig]) -> list[Optimizer]:
        """Create the optimizer of world model, actors and critics."""
        trained, reads = {"world_model": self.agent.world}, list[nn.Module]()
        for behavior in self.behaviors:
            trained |= {behavior.named("actor"): behavior.actor, behavior.named("critic"): behavior.critic}
            reads += behavior.reads
        settings, module = self.config.optimizer, nn.ModuleDict(trained)
        rule = self.config.update_rule(settings)
        self.optimizer = Optimizer(module, self.loss, rule, context, max_grad_norm=settings.agc, uses=reads)
        return [self.optimizer]

    def initial_state(self, batch: Batch) -> ModelState | None:
        """Return the stored model state [N, ...] in the first row of the sequences, or None if no states are stored."""
        if not self.agent.stores:
            return None
        return self.agent.expand({name: batch.steps.extras[name][0] for name in STATES})

    def updated_extras(self, states: ModelState) -> dict[str, Tensor]:
        """Return the new model states, to be written back."""
        return self.agent.compress(states) if self.agent.stores else {}

    def head_input(self, head: str, state: ModelState) -> Tensor:
        """Return the features [L, N, F] of model states as input of a head; see `reward_grad` for the reward head."""
        feat = super().head_input(head, state)
        return feat.detach() if head == "reward" and not self.config.world_model.reward_grad else feat

    def gradient_step(self, batch: Segment, tau: float, rng: Noise) -> Metrics:
        """Take a step of the optimizer, then update the target critics; see `DreamerLearner.gradient_step`."""
        found = self.optimizer.minimize(batch, rng)
        for behavior in self.behaviors:
            assert behavior.target is not None
            behavior.target.update(self.optimizer, tau)
        states = ModelState(**found.aux)
        extras = {f"{EXTRAS}{name}": value for name, value in self.updated_extras(states).items()}
        return found.metrics | extras | self.train_modules(states, batch, rng) | {"Grads/agent": found.norm}

    def loss(self, batch: Segment, rng: Noise) -> LossTermsAux:
        """Compute the sum of the losses of world model, actors and critics; the model states are returned too."""
        state, loss, found = self.model_terms(batch, rng)
        scale = self.config.scale
        for behavior in self.behaviors:
            terms, returns = behavior.imagination_losses(state.detach(), rng)
            loss = loss + scale("policy") * terms["Loss__policy_loss"] + scale("value") * terms["Loss__value_loss"]
            if self.config.critic.replay_loss:
                terms["Loss__replay_value_loss"] = replayed = behavior.replay_loss(state, batch, returns)
                loss = loss + scale("replay_value") * replayed
            found |= {behavior.named(name): value for name, value in terms.items()}
        logged = {name: value.detach().flatten() for name, value in found.items()}
        return *reduce_loss(loss.flatten(), torch.ones_like(loss).flatten(), **logged), state.detach()._asdict()

    def model_terms(self, batch: Segment, rng: Noise) -> tuple[ModelState, Tensor, dict[str, Tensor]]:
        """Compute the loss of the world model (eq. 2) for each time step.

            L = β_pred L_pred + β_dyn L_dyn + β_rep L_rep

        L_pred is the sum of the losses of the predicted observations, rewards and continue flags. Return model states
        [L, N, ...] with gradient, losses [L, N], and quantities to log, name -> [L, N].
        """
        model, scale = self.config.world_model, self.config.scale
        state, prior, posterior, observation, reward = self.observe(batch, rng, squared_distance)
        assert isinstance(prior, Tensor) and isinstance(posterior, Tensor)
        continues = (~batch.terminated).to(reward) * (self.config.gamma if model.continue_discount else 1.0)  # [L, N]
        ends = self.agent.world.continue_loss(self.head_input("continue", state), continues)
        kl = kl_loss(posterior, prior, scale("dynamic"), scale("representation"), model.kl_free_nats)
        loss = scale("observation") * observation + scale("reward") * reward + scale("continue") * ends + kl
        terms = {"world_model": loss, "observation": observation, "reward": reward, "continue": ends, "state": kl}
        found = {f"Loss__{name}_loss": term for name, term in terms.items()}
        measures = categorical_measures(posterior, prior)
        return state, loss, found | {f"State__{name}": measure for name, measure in measures.items()}

    def components(self) -> dict[str, protocols.Stateful]:
        """Return the stateful components: agent, critics, optimizer, `step`, and noise."""
        found: dict[str, protocols.Stateful] = {"agent": self.agent, "noise": self.noise, "step": self.step}
        for behavior in self.behaviors:
            found |= behavior.components()
        return found | {"optimizer": self.optimizer}


def build(context: Context[Config]) -> tuple[Learner, Replay, TrainingSchedule]:
    """Build learner, replay buffer and training schedule; the seed (random stream `init`) determines the weights."""
    learner = Learner(context)
    return learner, *memory_and_plan(context, learner.agent.stored, lead=context.algo.replay_context)
