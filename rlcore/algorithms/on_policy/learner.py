"""Base class of on-policy learners, and reward normalization; each algorithm defines its losses in a derived class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from rlcore import protocols, streams
from rlcore.algorithms.on_policy.actor_critic import ActorCritic
from rlcore.algorithms.on_policy.config import OnPolicyConfig
from rlcore.data.steps import transitions
from rlcore.functional.returns import TransitionTargets, advantages
from rlcore.functional.stats import LossTerms, RunningMoments, mean_metrics, weighted_std
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.types import ALLOWED, Batch, Context, Metrics, Ranks, SingleProcess, State, Trajectory


class OnPolicyLearner(protocols.Learner):
    """Base class of on-policy learners: one agent, one optimizer, and running statistics that scale the rewards.

    A derived class implements `update`, `gradient_step` and `loss`.

    Args:
        context: config, environment spec, devices and ranks of the run.

    Attributes:
        config: config of the algorithm; a derived class annotates it with its own type.
        agent: agent that is trained, an `agent_class`.
        agent_class: class of the agent, constructed from config, environment spec, `distribution.type` and a
            torch.Generator.
    """

    config: OnPolicyConfig
    agent: ActorCritic
    agent_class: ClassVar[type[ActorCritic]] = ActorCritic

    def __init__(self, context: Context[OnPolicyConfig]) -> None:
        config = self.config = context.algo
        self.ranks, self.autocast = context.ranks, context.fabric.autocast
        self.updates = 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # equal on all ranks
        self.agent = self.agent_class(config, context.spec, context.config.distribution.type, rng)
        self.optimizer = Optimizer(
            self.agent,
            self.loss,
            config.optimizer,
            context,
            max_grad_norm=config.max_grad_norm,
            reduction=config.loss_reduction,
        )
        self.step = Step(self.gradient_step, [self.optimizer], [], context)
        self.reward_scaler = RewardScaler(config.gamma, config.reward_clip, self.ranks, config.reward_scale)

    @property
    def updates(self) -> int:
        """Number of gradient steps taken; reading it waits for a GPU that decides how many."""
        self._updates = int(self._updates)
        return self._updates

    @updates.setter
    def updates(self, number: int | Tensor) -> None:
        self._updates = number

    def gradient_step(self, *inputs: object) -> Metrics:
        """Take one optimizer step, and return the quantities to log, averaged over samples (name -> [])."""
        raise NotImplementedError

    def loss(self, batch: object, coefs: Mapping[str, float]) -> LossTerms:
        """Return the loss summed over samples [], the sum of the sample weights [], and the means to log (name -> []).

        `coefs` maps names of coefficients, such as `ent_coef`, to their current values.
        """
        raise NotImplementedError

    @torch.no_grad()
    def advantage(self, steps: Trajectory, step: TransitionTargets, last: object) -> Tensor:
        """Compute the advantages of a rollout from the values predicted during collection.

        Args:
            steps: rows (time steps) of the rollout, [T, B].
            step: rewards and ends of episodes for the transitions t → t+1 of the rollout, [T, B].
            last: input of the agent at time step T, the one after the last row, [B, ...].

        Returns:
            Advantages, [T, B].
        """
        config = self.config
        with self.autocast():
            _, last_value = self.agent(last)
        return advantages(step, steps.extras["value"], last_value, config.gamma, config.gae_lambda, config.gae_method)

    @torch.no_grad()
    def count_allowed(self, batch: Batch) -> Metrics:
        """Return a metric of the action masks of a rollout [T, B]: the mean share of choices that they allow.

        The metric is NaN if the masks allow no action although the episode continues. The trainer then raises an error
        when it reads the metrics, so that no step of a rollout waits for a GPU. Without masks, there is no metric.
        """
        if not self.agent.masks:
            return {}
        obs = {key: batch.steps.obs[key].flatten(0, 1) for key in self.agent.masks}
        share = torch.cat([mask.flatten(1) != 0 for mask in obs.values()], 1).float().mean(1)
        weight = transitions(batch).weight.flatten()  # 0 if the step only resets the environment
        mean = share.dot(weight) / weight.sum().clamp(min=1)
        nothing = self.agent.spec.nothing_allowed(obs, torch.cat)
        if nothing is not None:
            mean = mean.masked_fill((nothing & (weight > 0)).any(), torch.nan)
        return {ALLOWED: mean}

    def average(self, logged: Sequence[Metrics], coefs: Mapping[str, float]) -> Metrics:
        """Return the metrics of an update.

        `logged` contains the means of each gradient step; they are averaged over the gradient steps and ranks. The
        current values of the coefficients `coefs`, such as the learning rate, are added.
        """
        shown = {f"Info/{name}": value for name, value in coefs.items() if name != "lr"}
        return mean_metrics(logged, self.ranks) | shown | {"Info/learning_rate": coefs["lr"]}

    def components(self) -> dict[str, protocols.Stateful]:
        """Return all components that are saved in a checkpoint: agent, optimizer, step, and reward statistics."""
        names = ("agent", "optimizer", "step", "reward_scaler")
        return {name: getattr(self, name) for name in names}


class RewardScaler:
    """Division of rewards by the standard deviation of discounted returns (Engstrom et al. 2020, arXiv:2005.12729).

    As in the paper, the return of a step is a sum over past rewards: Rₜ = γ Rₜ₋₁ + rₜ, starting with 0 in each episode.
    With scope "rollout", it also starts with 0 in each rollout, as in rl8. Otherwise, late in a long episode, the
    returns would be almost equal, and dividing by their small standard deviation would give large rewards.
    The mean is not subtracted from rewards, because that would change the optimal policy. Only training uses scaled
    rewards; evaluations report unscaled rewards.

    Args:
        gamma: γ, discount factor of one step.
        clip: largest absolute value of a scaled reward.
        ranks: processes that train together; the standard deviation is computed over all of them.
        scope: config key `reward_scale`: "running" computes the standard deviation over all transitions so far,
            "rollout" over those of the newest rollout.
    """

    def __init__(self, gamma: float, clip: float, ranks: Ranks | None = None, scope: str = "running") -> None:
        self.gamma, self.clip, self.ranks, self.scope = gamma, clip, ranks or SingleProcess(), scope
        self.moments = RunningMoments(1)
        self.running = torch.zeros(0, dtype=torch.float64)  # [B], discounted returns of the unfinished episodes

    def __call__(self, step: TransitionTargets) -> Tensor:
        """Update the standard deviation with transitions [T, B], and return their scaled rewards, [T, B] float32."""
        reward, counts = step.reward.double(), step.weight > 0
        returns = self.reversed_returns(reward, step.done, counts)
        if self.scope == "rollout":
            scale = weighted_std(returns, counts.double(), self.ranks.sum) + 1e-8
        else:
            self.moments.update(returns.flatten().unsqueeze(-1), self.ranks.sum, counts.flatten())
            scale = self.moments.scale()
        return (reward / scale).clamp(-self.clip, self.clip).to(torch.promote_types(step.reward.dtype, torch.float32))

    def reversed_returns(self, reward: Tensor, done: Tensor, counts: Tensor) -> Tensor:
        """Compute the return Rₜ = γ Rₜ₋₁ + rₜ of each transition, and remember those of the unfinished episodes.

        Args:
            reward: [T, B] float64; rewards of the transitions.
            done: [T, B] bool; the transition ends its episode.
            counts: [T, B] bool; False if the transition only resets the environment.

        Returns:
            Returns, [T, B] float64.
        """
        carried = self.scope == "running" and len(self.running)
        running = self.running.to(reward.device) if carried else torch.zeros_like(reward[0])
        returns = []
        for reward_t, done_t, counts_t in zip(reward, done, counts, strict=True):
            running = torch.where(counts_t, self.gamma * running + reward_t, running)
            returns.append(running)
            # A reset also sets the sum to 0: an episode that is truncated at a checkpoint has no step with `done`.
            running = torch.where(done_t | ~counts_t, torch.zeros_like(running), running)
        self.running = running
        return torch.stack(returns)

    def scale(self, batch: Batch) -> Batch:
        """Update the standard deviation with a batch [T, B], and return the batch with scaled rewards.

        As in every batch, `reward[t]` is the reward of the transition that ends in row t. `reward[0]` is not scaled,
        because its transition starts before the batch.
        """
        if len(self.running):  # batched environments can be reset between two rollouts, without a row for the reset
            opens = batch.steps.is_first[0]
            self.running = self.running.to(opens.device).masked_fill(opens, 0)
        scaled = self(transitions(batch))
        rows = torch.cat([batch.steps.reward[:1], scaled[:-1]])
        return replace(batch, steps=replace(batch.steps, reward=rows), last=replace(batch.last, reward=scaled[-1]))

    def state_dict(self) -> State:
        """Return the running mean and variance, and the discounted returns of this rank's unfinished episodes."""
        return {"moments": self.moments.state_dict(), "running": self.running}

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`."""
        self.moments.load_state_dict(state["moments"])
        self.running = state["running"].clone()
