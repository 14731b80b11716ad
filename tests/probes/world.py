"""Small world model with critic and actor, which uses everything that large ones need from the core.

Sequences of 16 from a buffer, an image and numbers, a nested carry (dicts, tuples, a list), a latent that is stored
with its row and written back, a loop over time that compiles as one operation, dropout, three optimizers of which two
are in a list, losses that pass tensors to the next, a target. It is not part of the product and learns little, because
it only tests the guarantees for all algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore import protocols, streams
from rlcore.config.run import AlgorithmConfig
from rlcore.config.schema import arg
from rlcore.data.replay import Replay
from rlcore.data.samplers import Sequences
from rlcore.data.steps import transitions
from rlcore.functional.noise import Noise
from rlcore.functional.scan import scan
from rlcore.functional.stats import reduce_loss
from rlcore.nn.dropout import Dropout
from rlcore.nn.encoder import MultiEncoder
from rlcore.nn.mlp import linear
from rlcore.nn.network_keys import EncoderConfig, KeysConfig, check_keys
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.step import Step
from rlcore.optim.target import Target
from rlcore.spec import ArraySpec, EnvSpec
from rlcore.types import Batch, Context, Metrics, TrainingSchedule

UNITS, LATENTS = 8, 4


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})

    name: str = arg("world", "the algorithm", choices=("world",))
    learning_starts: int = arg(72, "policy steps before the first batch, played by the agent", low=0)
    replay_ratio: float = arg(0.125, "gradient steps a policy step", above=0)
    size: int = arg(60, "rows of every environment that are remembered", low=1)
    length: int = arg(16, "L", low=1)
    batch_size: int = arg(4, "N", low=1)
    gamma: float = arg(0.9, "discount", low=0, high=1)
    tau: float = arg(0.1, "share of the way that the target goes", low=0, high=1)
    dropout: float = arg(0.1, "share of the decoder's units that a loss leaves out", low=0, high=0.9)
    mlp_keys: KeysConfig = arg(KeysConfig(("state",)), "vector keys")
    cnn_keys: KeysConfig = arg(KeysConfig(("rgb",)), "image keys")
    encoder: EncoderConfig = arg(
        EncoderConfig(dense_units=8, mlp_layers=1, mlp_features_dim=8, cnn_features_dim=8), "of observations"
    )
    optimizer: OptimizerConfig = arg(OptimizerConfig(lr=1e-3), "of each")

    def check_spec(self, spec: EnvSpec) -> None:
        check_keys(spec, self.mlp_keys.encoder, self.cnn_keys.encoder, self.kinds)


class State(NamedTuple):
    """Current state of the model: h [..., UNITS], z [..., LATENTS]."""

    h: Tensor
    z: Tensor


class Core(nn.Module):
    """One step of the model; resets where an episode opens."""

    def __init__(self, features: int, actions: int, rng: torch.Generator) -> None:
        super().__init__()
        self.inputs = linear(LATENTS + actions, UNITS, rng, None)
        self.cell = nn.GRUCell(UNITS, UNITS)
        self.posterior = linear(UNITS + features, LATENTS, rng, None)
        self.prior = linear(UNITS, LATENTS, rng, None)

    def forward(self, state: State, action: Tensor, features: Tensor, is_first: Tensor, noise: Tensor) -> Any:
        """Return the state after an observation, with `noise` in its z, and the prior and posterior means of z."""
        keep = (~is_first).unsqueeze(-1).to(features)
        h, z, action = state.h * keep, state.z * keep, action * keep
        h = self.cell(self.inputs(torch.cat([z, action], -1)).tanh(), h)
        prior, posterior = self.prior(h), self.posterior(torch.cat([h, features], -1))
        return State(h, posterior + 0.1 * noise), (prior, posterior)


class World(nn.Module):
    """Encoder, core, and the decoder that predicts reward and vector from a state."""

    def __init__(self, config: Config, spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.encoder = MultiEncoder(spec, config.mlp_keys.encoder, config.cnn_keys.encoder, config.encoder, rng, 10.0)
        self.core = Core(self.encoder.output_size, spec.action.nvec[0], rng)
        self.hidden = linear(UNITS + LATENTS, UNITS, rng, None)
        self.dropout = Dropout(config.dropout)
        self.outputs = linear(UNITS, 1 + self.encoder.size, rng, None)


class Agent(nn.Module):
    """Acts by the state that the model has for an episode."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.keys = (*config.mlp_keys.encoder, *config.cnn_keys.encoder)
        self.actions, self.start = spec.action.nvec[0], spec.action.start[0]
        self.world = World(config, spec, rng)
        self.actor = linear(UNITS + LATENTS, self.actions, rng, None)

    def initial(self, batch_size: int) -> dict[str, Any]:
        state = (torch.zeros(batch_size, UNITS), torch.zeros(batch_size, LATENTS))
        return {"model": {"state": state}, "said": [torch.zeros(batch_size, self.actions)]}

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        count, features = len(is_first), self.world.encoder(obs)
        noise = features.new_zeros(count, LATENTS) if greedy or rng is None else rng.normal(count, LATENTS)
        state, _ = self.world.core(State(*carry["model"]["state"]), carry["said"][0], features, is_first, noise)
        logits = self.actor(torch.cat(state, -1))
        if not greedy and rng is not None:
            logits = logits - rng.exponential(count, self.actions).log()  # Gumbel noise: the largest is a sample
        action = logits.argmax(-1, keepdim=True)
        said = self.one_hot(action)
        return {"said": [said], "model": {"state": tuple(state)}}, action, {"z": state.z}

    def one_hot(self, action: Tensor) -> Tensor:
        return (action == torch.arange(self.actions, device=action.device)).float()

    def to_env(self, action: Tensor) -> Tensor:
        return action[:, 0] + self.start

    def from_env(self, action: Tensor) -> Tensor:
        return action[:, None] - self.start


class Sequence(NamedTuple):
    """Rows [L, N] in the order of the model, and the state before the first."""

    obs: dict[str, Tensor]
    before: Tensor
    said: Tensor
    is_first: Tensor
    reward: Tensor
    discount: Tensor
    weight: Tensor
    begin: Any
    stored: Tensor


class Learner(protocols.Learner):
    transferable_components = ("agent", "critic")

    def __init__(self, context: Context) -> None:
        config = self.config = context.algo
        self.ranks, self.updates = context.ranks, 0
        self.noise = Noise(context.config.seed, "loss", context.ranks.rank, device=context.fabric.device)
        rng = torch.Generator().manual_seed(streams.integer(context.config.seed, "init"))
        self.agent = Agent(config, context.spec, context.config.distribution.type, rng)
        self.critic = linear(UNITS + LATENTS, 1, rng, None)
        self.target = Target(self.critic, context)
        self.model = Optimizer(self.agent.world, self.model_loss, config.optimizer, context, max_grad_norm=100.0)
        of_critic = Optimizer(self.critic, self.critic_loss, config.optimizer, context, uses=[self.target.module])
        of_actor = Optimizer(self.agent.actor, self.actor_loss, config.optimizer, context, uses=[self.critic])
        self.others = [of_critic, of_actor]
        self.step = Step(self.gradient_step, [self.model, *self.others], [self.target], context)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Take three steps on sequences [L, N] and write the new latents back into the buffer."""
        step, steps = transitions(batch), batch.steps
        said = self.agent.one_hot(steps.action)
        before = torch.cat([steps.carry["said"][0].unsqueeze(0), said[:-1]])  # outputs of the agent before each row
        discount = self.config.gamma * (~step.terminated).float()
        begin = State(*steps.carry["model"]["state"])
        rows = (steps.obs, before, said, steps.is_first, step.reward, discount, step.weight)
        sequence = Sequence(*rows, begin, steps.extras["z"])
        found = self.step(sequence, rng=self.noise)
        batch.write_back(self.step.aux)
        self.agent.world.encoder.observe(steps.obs, self.ranks)
        self.updates += 3
        return found

    def gradient_step(self, batch: Sequence, rng: Noise) -> Any:
        """Train model, critic, actor and target: each loss uses results of the one before."""
        critic, actor = self.others
        model = self.model.minimize(batch, rng)
        value = critic.minimize(batch, model.aux)
        choice = actor.minimize(batch, model.aux, value.aux)
        self.target.update(critic, self.config.tau)
        return model.metrics | value.metrics | choice.metrics | {"Info/norm": model.norm}, {"z": model.aux["z"]}

    def model_loss(self, batch: Sequence, rng: Noise) -> Any:
        """Return the distances of decoder from rewards and vectors and of prior from posterior; states [L, N]."""
        world = self.agent.world
        noise = rng.normal(*batch.weight.shape, LATENTS)
        xs = {"obs": world.encoder(batch.obs, 2), "action": batch.before, "first": batch.is_first, "z": noise}

        def step(state: State, x: dict[str, Tensor], params: dict[str, Tensor]) -> Any:
            after, means = functional_call(world.core, params, (state, x["action"], x["obs"], x["first"], x["z"]))
            return after, (after, means)

        _, (states, (prior, posterior)) = scan(step, batch.begin, xs, dict(world.core.named_parameters()))
        latent = torch.cat(states, -1)
        said = world.outputs(world.dropout(world.hidden(latent).relu(), rng))
        wanted = torch.cat([batch.reward.unsqueeze(-1), batch.obs["state"].float()], -1)
        fit, divergence = (said - wanted).square().mean(-1), (prior - posterior).square().sum(-1)
        fit = fit + 0.01 * (posterior - batch.stored).square().mean(-1)
        found = reduce_loss(
            (fit + 0.1 * divergence).flatten(),
            batch.weight.flatten(),
            Loss__fit=fit.flatten(),
            State__kl=divergence.flatten(),
        )
        return *found, {"latent": latent.detach(), "z": states.z.detach()}

    def critic_loss(self, batch: Sequence, aux: dict[str, Tensor]) -> Any:
        """Return TD(0) on the model's states; the advantages [L-1, N] for the actor."""
        latent = aux["latent"]
        value = self.critic(latent[:-1]).squeeze(-1)
        then = self.target.module(latent[1:]).squeeze(-1)
        error = batch.reward[:-1] + batch.discount[:-1] * then - value
        loss, weight = error.square().flatten(), batch.weight[:-1].flatten()
        return *reduce_loss(loss, weight, Loss__value_loss=loss), {"advantage": error.detach()}

    def actor_loss(self, batch: Sequence, aux: dict[str, Tensor], found: dict[str, Tensor]) -> Any:
        """Return -A log π(a|s) of the taken actions."""
        logprob = (self.agent.actor(aux["latent"][:-1]).log_softmax(-1) * batch.said[:-1]).sum(-1)
        loss = (-found["advantage"] * logprob).flatten()
        return reduce_loss(loss, batch.weight[:-1].flatten(), Loss__policy_loss=loss)

    def components(self) -> dict[str, protocols.Stateful]:
        parts = {name: getattr(self, name) for name in ("agent", "critic", "target", "model", "step", "noise")}
        return parts | {"of_critic": self.others[0], "of_actor": self.others[1]}


def build(context: Context) -> tuple[Learner, Replay, TrainingSchedule]:
    config: Config = context.algo
    agent = Agent(config, context.spec, "auto", torch.Generator())
    replay = Replay(
        context,
        Sequences(config.length),
        size=config.size,
        batch_size=config.batch_size,
        ratio=config.replay_ratio,
        starts=config.learning_starts,
        extras={"z": ArraySpec((LATENTS,), "float32")},
        carry=agent.initial(1),
    )
    return Learner(context), replay, TrainingSchedule(config.step_limit, 1)
