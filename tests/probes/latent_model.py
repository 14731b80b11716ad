"""World model as an external author could write it: latents are stored with rows, read by a loss and written back.

The conformance suite must accept it and reject each of its mutants (tests/contract/test_conformance_mutants.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlcore import protocols, streams
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.world_keys import MomentsConfig
from rlcore.config.run import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.data.replay import Replay
from rlcore.data.samplers import Sequences
from rlcore.functional.noise import Noise
from rlcore.functional.scan import scan
from rlcore.functional.stats import reduce_loss
from rlcore.nn.mlp import linear
from rlcore.nn.recurrent import GRU
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.step import Step
from rlcore.spec import ArraySpec
from rlcore.types import Batch, Context, Metrics, TrainingSchedule

OBS, ACTIONS = 4, 2  # CartPole
UNITS, LATENTS, SIZE, HORIZON = 8, 4, 12, 3  # a latent [..., SIZE] is the GRU's state and a stochastic part


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    name: str = arg("latent_model", "name of the algorithm", choices=("latent_model",))
    free_nats: float = arg(0.05, "divergence below which it has no gradient", low=0)


class Model(nn.Module):
    def __init__(self, rng: torch.Generator) -> None:
        super().__init__()
        self.inputs, self.gru = linear(LATENTS + ACTIONS, UNITS, rng), GRU(UNITS, UNITS, rng)
        self.prior, self.posterior = linear(UNITS, LATENTS, rng), linear(UNITS + OBS, LATENTS, rng)
        self.outputs = linear(SIZE, OBS + 1, rng)  # predictions of observation and reward

    def forward(self, latent: Tensor, action: Tensor, first: Tensor, noise: Tensor, obs: Tensor | None = None) -> Any:
        h, z = latent.split([UNITS, LATENTS], -1)
        previous = torch.cat([z, action], -1).masked_fill(first.unsqueeze(-1), 0)
        h = self.gru(self.inputs(previous).tanh(), first, {"h": h})[0]
        prior = self.prior(h)
        mean = prior if obs is None else self.posterior(torch.cat([h, obs], -1))
        return torch.cat([h, mean + noise], -1), (mean - prior).square().sum(-1) / 2


class Agent(nn.Module):
    def __init__(self, config: Config, spec: Any, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.model, self.actor = Model(rng), linear(SIZE, ACTIONS, rng)

    def initial(self, batch_size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch_size, SIZE), torch.zeros(batch_size, ACTIONS)

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        x, draws = obs["state"], not greedy and rng is not None
        noise = rng.normal(len(x), LATENTS) if draws else x.new_zeros(len(x), LATENTS)
        latent, _ = self.model(*carry, is_first, noise, x)
        logits = self.actor(latent)
        action = (logits - rng.exponential(*logits.shape).log() if draws else logits).argmax(-1, keepdim=True)
        return (latent, one_hot(action)), action, {"latent": latent}

    def to_env(self, action: Tensor) -> Tensor:
        return action[:, 0]

    def from_env(self, action: Tensor) -> Tensor:
        return action[:, None]


def one_hot(action: Tensor) -> Tensor:
    return (action == torch.arange(ACTIONS)).float()


class Learner(protocols.Learner):
    def __init__(self, context: Context) -> None:
        config, self.ranks, self.updates = context.algo, context.ranks, 0
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        self.agent, self.free_nats = Agent(config, context.spec, "auto", rng), config.free_nats
        self.critic, self.scale = linear(SIZE, 1, rng), ReturnScale(MomentsConfig())
        of, model, uses = OptimizerConfig(lr=1e-3), self.agent.model, [self.agent.model, self.critic, self.scale]
        self.of_model = Optimizer(model, self.model_loss, of, context, max_grad_norm=100.0)
        self.of_actor = Optimizer(self.agent.actor, self.actor_loss, of, context, uses=uses)
        self.of_critic = Optimizer(self.critic, self.critic_loss, of, context)
        self.step = Step(self.gradient_step, [self.of_model, self.of_actor, self.of_critic], [], context)

    def update(self, batch: Batch, rng: Any) -> Metrics:
        steps, latent = batch.steps, batch.steps.extras["latent"]
        rows = (one_hot(steps.action)[:-1], steps.is_first[1:], steps.obs["state"][1:], steps.reward[1:])
        found = self.step(latent[0], rows, rng=self.noise)
        batch.write_back({"latent": torch.cat([latent[:1], self.step.aux["latent"]])})
        self.updates += 3
        return found

    def gradient_step(self, latent: Tensor, rows: Any, rng: Noise) -> Any:
        model = self.of_model.minimize(latent, rows, rng)
        actor = self.of_actor.minimize(model.aux["latent"], rng)
        critic = self.of_critic.minimize(actor.aux)
        return {**model.metrics, **critic.metrics}, {"latent": model.aux["latent"]}

    def model_loss(self, latent: Tensor, rows: Any, rng: Noise) -> Any:
        def step(latent: Tensor, x: Any, params: dict[str, Tensor]) -> Any:
            latent, divergence = torch.func.functional_call(self.agent.model, params, (latent, *x))
            return latent, (latent, divergence)

        action, first, obs, reward = rows
        xs = (action, first, rng.normal(*reward.shape, LATENTS), obs)
        _, (latent, divergence) = scan(step, latent, xs, dict(self.agent.model.named_parameters()))
        fit = self.agent.model.outputs(latent) - torch.cat([obs, reward.unsqueeze(-1)], -1)
        loss = (fit.square().mean(-1) + divergence.clamp(min=self.free_nats)).flatten()
        return *reduce_loss(loss, (~first).float().flatten(), Loss__model=loss), {"latent": latent.detach()}

    def actor_loss(self, latent: Tensor, rng: Noise) -> Any:
        """Compute the REINFORCE loss of HORIZON imagined steps from every latent."""
        states, actions, never = [latent.flatten(0, 1)], list[Tensor](), torch.zeros(latent[..., 0].numel()).bool()
        for _ in range(HORIZON):
            logits = self.agent.actor(states[-1]) - rng.exponential(len(never), ACTIONS).log()
            actions.append(one_hot(logits.argmax(-1, keepdim=True)))
            states.append(self.agent.model(states[-1], actions[-1], never, rng.normal(len(never), LATENTS))[0])
        feat, value = torch.stack(states).detach(), self.critic(torch.stack(states)).squeeze(-1).detach()
        reward = self.agent.model.outputs(feat[1:])[..., -1].detach()
        returns = reward.flip(0).cumsum(0).flip(0) + value[-1]
        advantage = (returns - value[:-1]) / self.scale(returns, self.ranks)
        loss = (-advantage * (self.agent.actor(feat[:-1]).log_softmax(-1) * torch.stack(actions)).sum(-1)).flatten()
        return *reduce_loss(loss, torch.ones_like(loss)), {"feat": feat[:-1], "returns": returns}

    def critic_loss(self, imagined: dict[str, Tensor]) -> Any:
        loss = (self.critic(imagined["feat"]).squeeze(-1) - imagined["returns"]).square().flatten()
        return reduce_loss(loss, torch.ones_like(loss), Loss__value_loss=loss)

    def components(self) -> dict[str, protocols.Stateful]:
        names = ("agent", "critic", "scale", "of_model", "of_actor", "of_critic", "step", "noise")
        return {name: getattr(self, name) for name in names}


def build(context: Context) -> tuple[Learner, Replay, TrainingSchedule]:
    extras = {"latent": ArraySpec((SIZE,), "float32")}
    replay = Replay(context, Sequences(8), size=60, batch_size=4, ratio=0.25, starts=108, extras=extras)
    return Learner(context), replay, TrainingSchedule(context.algo.step_limit, 1)
