"""Dreamer V3.5: Mastering Diverse Control Tasks through World Models. Hafner et al. 2025, arXiv:2301.04104v2.

This is Dreamer V3 as published in Nature (doi 10.1038/s41586-025-08744-2), with the equation numbers of that version.

Equations of the paper and the code that implements them:
    eq. 1, recurrent state-space model       rssm.RSSM, networks.BlockGRU
    eq. 2-3, loss of the world model         Learner.model_terms, dreamer_v3.learner.kl_loss
    eq. 4-5, critic and λ-returns            behavior.Behavior.imagine_returns, rlcore.functional.returns.lambda_return
    eq. 6-7, actor and scale of returns      behavior.Behavior.policy_loss, return_scale.ReturnScale
    eq. 8-9, symlog predictions              rlcore.functional.scalars, world_model.KeyEncoder.preprocess
    eq. 10-11, two-hot predictions           rlcore.functional.scalars.TwoHot
    "Critic learning", replayed sequences    behavior.Behavior.replay_loss

The paper's optimizer minimizes the sum of all losses. Here it is split in two, `Learner.optimizer` of world model and
critic, and one of the actor, with the same result: each tensor is clipped and updated by itself, and all gradients are
computed with the parameters before the step. Between the two, the scale of returns is computed over all ranks.

Each row of the replay buffer has the model state that the agent inferred there. A sequence starts from the state of the
row before it, and the new states are written back:

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

import torch
from torch import Tensor, nn

from rlcore import protocols
from rlcore.algorithms.dreamer.agent import make_behavior_policy
from rlcore.algorithms.dreamer.config import DreamerConfig
from rlcore.algorithms.dreamer.critic import join
from rlcore.algorithms.dreamer.dreamer_v3.learner import kl_loss
from rlcore.algorithms.dreamer.dreamer_v3_5.agent import STATES, Agent
from rlcore.algorithms.dreamer.dreamer_v3_5.behavior import Behavior, make_optimizer
from rlcore.algorithms.dreamer.dreamer_v3_5.config import Config
from rlcore.algorithms.dreamer.latents import categorical_measures
from rlcore.algorithms.dreamer.learner import DreamerLearner
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, memory_and_plan
from rlcore.data.replay import Replay
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import squared_distance
from rlcore.functional.stats import LossTermsAux, reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.types import Batch, Context, Metrics, TrainingSchedule

__all__ = ["Agent", "Behavior", "Config", "Learner", "build", "make_behavior_policy"]


class Learner(DreamerLearner):
    """Dreamer V3.5 learner: one gradient step of all networks per batch of sequences."""

    agent_class, behavior_class = Agent, Behavior
    agent: Agent
    behaviors: list[Behavior]
    config: Config

    def make_optimizers(self, context: Context[DreamerConfig]) -> list[Optimizer]:
        """Create the optimizer of world model and critics; return it and those of the actors."""
        trained: dict[str, nn.Module] = {"world_model": self.agent.world}
        reads = list[nn.Module]()
        for behavior in self.behaviors:
            trained |= {join(behavior.named("critic"), critic.key): critic.network for critic in behavior.critics}
            reads += [behavior.actor, *behavior.reads]
        self.optimizer = make_optimizer(nn.ModuleDict(trained), self.loss, context, self.config, reads)
        return [self.optimizer, *(behavior.actor_optimizer for behavior in self.behaviors)]

    def initial_state(self, batch: Batch) -> ModelState | None:
        """Return the stored model state [N, ...] in the first row of the sequences, or None if no states are stored."""
        if not self.agent.stores:
            return None
        return self.agent.expand({name: batch.steps.extras[name][0] for name in STATES})

    def updated_extras(self, states: ModelState) -> dict[str, Tensor]:
        """Return the new model states, to be written back."""
        return self.agent.compress(states) if self.agent.stores else {}

    def head_input(self, head: str, state: ModelState) -> Tensor:
        """Return the features [L, N, F] of model states as input of a head, or of the critics on replayed sequences.

        They are detached if the config says so (`reward_grad` for "reward", `replay_grad` for "critic").
        """
        feat, config = super().head_input(head, state), self.config
        trains = {"reward": config.world_model.reward_grad, "critic": config.critic.replay_grad}
        return feat if trains.get(head, True) else feat.detach()

    def gradient_step(self, batch: Segment, tau: float, rng: Noise) -> tuple[Metrics, dict[str, Tensor]]:
        """Take a step of all optimizers, then update the target critics; see `DreamerLearner.gradient_step`."""
        found = self.optimizer.minimize(batch, rng)
        aux, metrics, norms = found.aux, found.metrics, [found.norm]
        for behavior in self.behaviors:
            trained = behavior.train_actor({name: aux[behavior.named(name)] for name in behavior.imagined})
            metrics |= behavior.suffixed(trained.metrics)
            norms.append(trained.norm)
            for critic in behavior.critics:
                assert critic.target is not None
                critic.target.update(self.optimizer, tau)
        states = ModelState(aux["deter"], aux["stoch"])
        extras, norm = self.updated_extras(states), torch.stack(norms).norm()
        return metrics | self.train_modules(states, batch, rng) | {"Grads/agent": norm}, extras

    def loss(self, batch: Segment, rng: Noise) -> LossTermsAux:
        """Compute the sum of the losses of world model and critics; return model states and imagined steps too."""
        state, loss, found = self.model_terms(batch, rng)
        aux, measures, scale = state.detach()._asdict(), dict[str, Tensor](), self.config.scale
        for behavior in self.behaviors:
            values, measured, steps = behavior.imagine_returns(state.detach(), rng)
            for critic, value in zip(behavior.critics, values, strict=True):
                terms, loss = {"Loss/value_loss": value}, loss + scale("value") * value
                if self.config.critic.replay_loss:
                    feat, returns = self.head_input("critic", state), steps[critic.returns][0].view_as(loss)
                    terms["Loss/replay_value_loss"] = replayed = behavior.replay_loss(critic, feat, batch, returns)
                    loss = loss + scale("replay_value") * replayed
                found |= behavior.suffixed(terms, critic)
            measures |= behavior.suffixed(measured)
            aux |= {behavior.named(name): value for name, value in steps.items()}
        logged = {name: value.detach().flatten() for name, value in found.items()}
        total, count, means = reduce_loss(loss.flatten(), torch.ones_like(loss).flatten(), **logged)
        return total, count, means | measures, aux

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
