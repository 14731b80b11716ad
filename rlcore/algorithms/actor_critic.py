"""What on-policy actor-critics share beside their config: the agent, and a rollout as samples to learn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlcore import streams
from rlcore.algorithms.on_policy import OnPolicyConfig
from rlcore.algorithms.short_rollouts import compiled_where_short
from rlcore.data.reward_scale import RewardScaler
from rlcore.data.rollout import Samples
from rlcore.data.steps import shifted, transitions
from rlcore.functional.noise import Noise
from rlcore.functional.returns import gae
from rlcore.nn.encoder import Normalizer, VectorEncoder, flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.policy_head import PolicyHead
from rlcore.optim.optimizer import Optimizer
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Context, Learner, Metrics, Part


class Agent(nn.Module):
    """Encoder shared by actor and critic; their own perceptrons; a policy head for the action space."""

    def __init__(self, config: OnPolicyConfig, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.spec, self.keys = spec, tuple(config.mlp_keys.encoder)
        self.size = sum(spec.obs[key].size for key in self.keys)
        self.normalizer = Normalizer(self.size, config.obs_clip) if config.normalize_obs else nn.Identity()
        self.encoder = VectorEncoder(self.size, config.encoder, rng)
        self.actor = MLP(self.encoder.output_size, config.actor, rng)
        self.head = PolicyHead(self.actor.output_size, spec.action, distribution, config.actor, rng)
        self.critic = MLP(self.encoder.output_size, config.critic, rng, outputs=1)

    def features(self, obs: dict[str, Tensor], lead: int = 1) -> Tensor:
        """Normalised flat observations [*lead, F] float32 of obs key -> [*lead, ...]."""
        return self.normalizer(flatten(obs, self.spec, self.keys, lead))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[N, F] -> policy parameters [N, P] and values [N], both of the features' precision (float32)."""
        encoded = self.encoder(features)
        return self.head(self.actor(encoded)), self.critic(encoded).squeeze(-1)

    def initial(self, batch_size: int) -> tuple[()]:
        """No carry: this agent remembers nothing."""
        return ()

    def act(
        self,
        carry: tuple[()],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: Noise | None,
        greedy: bool = False,
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A], with their `logprob` [B] and the `value` [B] of the observation."""
        parameters, value = self(self.features(obs))
        policy = self.head.policy(parameters)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng))
        return (), action, {"logprob": policy.logprob(action), "value": value}

    def to_env(self, action: Tensor) -> Tensor:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.head.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] of the environment -> [B, A] as this agent says it."""
        return self.head.from_env(action)


class ActorCriticLearner(Learner):
    """Everything around an on-policy loss: a rollout's samples, coefficients, metrics, state.

    A subclass has `loss` and `update`, the two that its paper tells.

    Args:
        context: whole config, environments' spec, device, ranks.
        accumulate: the most minibatches of one optimizer step.

    Attributes:
        loss: of the subclass, as `rlcore.optim.optimizer.Loss`.
    """

    loss: Any

    def __init__(self, context: Context, accumulate: int = 1) -> None:
        config = self.config = context.config.algo
        self.ranks, self.autocast = context.ranks, context.fabric.autocast
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))  # on every rank the same
        self.agent = Agent(config, context.spec, context.config.distribution.type, rng)
        self.optimizer = Optimizer(
            self.agent,
            self.loss,
            config.optimizer,
            context,
            max_grad_norm=config.max_grad_norm,
            accumulate=accumulate,
            reduction=config.loss_reduction,
        )
        self.reward_scaler = RewardScaler(config.gamma, config.reward_clip, self.ranks)
        self.samples: Callable[[Batch], Samples] = self.prepare  # as machine code, where rollouts are short
        if not config.normalize_reward:  # whose scaler remembers: no function of the batch alone
            self.samples = compiled_where_short(self.prepare, [self.agent], context)
        self.scheduled = config.scheduled()
        self.updates = 0

    def coefficients(self, policy_steps: int) -> dict[str, float]:
        """The scheduled coefficients after `policy_steps`; the learning rate is the optimizer's from now on."""
        coefs = {name: self.config.coefficient(name, policy_steps) for name in self.scheduled}
        self.optimizer.set_lr(coefs["lr"])
        return coefs

    @torch.no_grad()
    def prepare(self, batch: Batch) -> Samples:
        """Advantages and returns of a rollout [T, B]; N = T·B samples with normalised features."""
        config, steps, step = self.config, batch.steps, transitions(batch)
        features = self.agent.features(steps.obs, lead=2)
        with self.autocast():
            _, last_value = self.agent(self.agent.features(batch.last.obs))
        reward = self.reward_scaler(step) if config.normalize_reward else step.reward
        discount = config.gamma * (~step.terminated).float()
        trace = config.gae_lambda * (~step.done).float()
        value = steps.extras["value"]
        advantage = gae(reward, discount, value, shifted(value, last_value), trace, config.gae_method)
        columns = (features, steps.action, steps.extras["logprob"], value, advantage, advantage + value, step.weight)
        return Samples._make(column.flatten(0, 1) for column in columns)

    def finish(self, batch: Batch, logged: Sequence[Metrics], norms: Sequence[Tensor], coefs: Metrics) -> Metrics:
        """Let the observations of a rollout count in the normaliser; what the log shows of the update.

        As the libraries it is compared with log them: means over minibatches (and ranks) of each one's own means.
        """
        if isinstance(self.agent.normalizer, Normalizer):
            obs = flatten(batch.steps.obs, self.agent.spec, self.agent.keys, lead=2)
            self.agent.normalizer.update(obs.flatten(0, 1), self.ranks.sum)
        metrics = {name: _mean([means[name] for means in logged]) for name in logged[0]} if logged else {}
        if metrics and self.ranks.size > 1:
            means = self.ranks.sum(torch.stack([*metrics.values()])) / self.ranks.size
            metrics = dict(zip(metrics, means, strict=True))
        if norms and self.optimizer.scales_loss:  # an overflow is no fault: the step was skipped, the scale lowered
            norm = torch.stack([*norms])
            norms = norm[norm.isfinite()].unbind()
        if norms:
            metrics["Info/grad_norm"] = _mean(norms)
        coefs["learning_rate"] = coefs.pop("lr")
        return metrics | {f"Info/{name}": value for name, value in coefs.items()}

    def parts(self) -> dict[str, Part]:
        """The agent with its normaliser, the optimizer, the statistics of rewards."""
        return {"agent": self.agent, "optimizer": self.optimizer, "reward_scaler": self.reward_scaler}


def _mean(values: Sequence[Tensor]) -> Tensor:
    """Of scalars; a single one is its own."""
    return values[0] if len(values) == 1 else torch.stack([*values]).mean()
