"""PPO: Proximal Policy Optimization Algorithms. Schulman, Wolski, Dhariwal, Radford, Klimov 2017, arXiv:1707.06347.

Read with:
    eq. 7, clipped surrogate L^CLIP     policy_loss        (dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5)
    eq. 9, value term (V - V_targ)²     value_loss         (clipping it is of the authors' code, not of the paper)
    eq. 9, whole objective              Learner.loss
    eq. 11-12, advantages               rlcore.functional.returns.gae
    algorithm 1                         Learner.update, after rlcore.train.loop has collected T steps of B actors

Departs from the paper:
    a truncated episode bootstraps from the value of its true last observation (the paper does not tell the two apart);
    advantages and returns are computed once a rollout; normalisation, annealing and `target_kl` are of later practice
    (Huang et al. 2022, "The 37 implementation details of PPO") and off unless the config asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rlcore import streams
from rlcore.algorithms.on_policy import OnPolicyConfig, Schedule
from rlcore.config.schema import arg
from rlcore.data.reward_scale import RewardScaler
from rlcore.data.rollout import Rollout, Samples, minibatches
from rlcore.data.steps import shifted, transitions
from rlcore.errors import RunError
from rlcore.functional.returns import gae
from rlcore.functional.stats import standardize
from rlcore.nn.encoder import Normalizer, VectorEncoder, check_keys, flatten
from rlcore.nn.mlp import MLP
from rlcore.nn.policy_head import PolicyHead
from rlcore.optim.compiled import CompiledOptimizer
from rlcore.optim.optimizer import Optimizer
from rlcore.spec import EnvSpec
from rlcore.types import Batch, Metrics, Plan, State

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# The means that `Learner.loss` gives for the log, in this order.
LOGGED = ("Loss/policy_loss", "Loss/value_loss", "Loss/entropy_loss", "Info/approx_kl", "Info/clip_fraction")
KL = LOGGED.index("Info/approx_kl")
SAVED = ("agent", "optimizer", "reward_scaler")  # parts of the learner with a state of their own


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    """Keys that PPO adds."""

    name: str = arg("ppo", "the algorithm", choices=("ppo",))
    update_epochs: int = arg(10, "K: times every step of a rollout is used", low=1)
    clip_coef: float = arg(0.2, "ε of the clipped surrogate", above=0)
    anneal_clip_coef: bool = arg(False, "clip_coef linearly to 0 at total_steps")
    clip_coef_schedule: Schedule = arg(None, "[[env_steps, clip_coef], ...] instead of a constant")
    clip_vloss: bool = arg(False, "clip the value loss by the same ε")
    dual_clip: float | None = arg(None, "c of the dual clip, bounding the loss of bad actions; null = off", above=1)
    target_kl: float | None = arg(None, "end an update when the KL passes 1.5 times this; null = off", above=0)


class Agent(nn.Module):
    """Encoder shared by actor and critic; their own perceptrons; a policy head for the action space."""

    def __init__(self, config: Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
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
        encoded = self.encoder(features.to(self.head.linear.weight.dtype))
        return self.head(self.actor(encoded)).to(features.dtype), self.critic(encoded).squeeze(-1).to(features.dtype)

    def initial(self, batch_size: int) -> tuple[()]:
        """No carry: this agent remembers nothing."""
        return ()

    def act(
        self,
        carry: tuple[()],
        obs: dict[str, Tensor],
        is_first: Tensor,
        rng: np.random.Generator | None,
        greedy: bool = False,
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """obs key -> [B, ...] -> actions [B, A], with their `logprob` [B] and the `value` [B] of the observation."""
        parameters, value = self(self.features(obs))
        policy = self.head.policy(parameters)
        action = policy.mode() if greedy else policy.sample(self.head.noise(len(value), rng).to(value.device))
        return (), action, {"logprob": policy.logprob(action), "value": value}

    def to_env(self, action: Tensor) -> np.ndarray:
        """[B, A] -> [B, *shape] in the environment's own form and bounds."""
        return self.head.to_env(action)


def policy_loss(ratio: Tensor, advantage: Tensor, clip_coef: float, dual_clip: float | None = None) -> Tensor:
    """-L^CLIP, eq. 7: -min(ρ Â, clip(ρ, 1-ε, 1+ε) Â); dual clip c > 1: at most -c Â where Â < 0. All [N] -> [N]."""
    assert ratio.shape == advantage.shape, (ratio.shape, advantage.shape)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantage)
    if dual_clip is not None:
        surrogate = torch.where(advantage < 0, torch.maximum(surrogate, dual_clip * advantage), surrogate)
    return -surrogate


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip_coef: float | None = None) -> Tensor:
    """(V - R)², eq. 9; with a clip ε the larger of it and (V_old + clip(V - V_old, ±ε) - R)². No ½. All [N] -> [N]."""
    assert value.shape == old_value.shape == returns.shape, (value.shape, old_value.shape, returns.shape)
    loss = (value - returns).square()
    if clip_coef is None:
        return loss
    clipped = old_value + (value - old_value).clamp(-clip_coef, clip_coef)
    return torch.maximum(loss, (clipped - returns).square())


class Learner:
    """Improves an `Agent` from one rollout at a time: algorithm 1's "optimize surrogate L, K epochs, minibatch M"."""

    def __init__(self, agent: Agent, config: Config, fabric: Fabric) -> None:
        self.agent, self.config, self.fabric = agent, config, fabric
        self.training = (
            agent,
            self.minibatch_loss,
            config.optimizer,
            config.max_grad_norm,
        )  # for either optimizer
        self.optimizer: Optimizer | CompiledOptimizer = Optimizer(*self.training, fabric)
        self.reward_scaler = RewardScaler(config.gamma, config.reward_clip)
        self.updates = 0

    def compile(self, count: int) -> None:
        """Compile the minibatch step, as one function, for rollouts of `count` = T·B samples."""
        size = min(self.config.per_rank_batch_size, count)
        samples = Samples.example(count, self.agent.size, self.agent.spec.action)
        example = (torch.arange(size), torch.ones(size), 0.2, 0.01, torch.tensor(float(size)), *samples[:-1])
        self.optimizer = CompiledOptimizer(*self.training, example)

    def update(self, batch: Batch, rng: np.random.Generator) -> Metrics:
        """Fit the agent to a rollout [T, B]; returns averages over the minibatches."""
        config = self.config
        coefs = {name: config.coefficient(name, batch.env_steps) for name in config.scheduled()}
        self.optimizer.set_lr(coefs["lr"])
        obs = flatten(batch.steps.obs, self.agent.spec, self.agent.keys, lead=2)  # [T, B, F]
        samples = self.prepare(batch, self.agent.normalizer(obs))
        sizes = (config.per_rank_batch_size, config.update_epochs, config.accumulate_minibatches)
        logged, norms = [], []
        for group in minibatches(samples.weight, *sizes, rng):
            total_weight = torch.stack([weight.sum() for _, weight in group]).sum()
            for rows, weight in group:
                minibatch = (rows, weight, coefs["clip_coef"], coefs["ent_coef"], total_weight, *samples[:-1])
                logged.append(self.optimizer.accumulate(*minibatch))
            if config.target_kl is not None and logged[-1][KL].item() > 1.5 * config.target_kl:
                self.optimizer.drop()
                break
            norms.append(self.optimizer.apply())
            self.updates += 1
        if isinstance(self.agent.normalizer, Normalizer):
            self.agent.normalizer.update(obs.flatten(0, 1))
        return self.metrics(logged, norms, coefs)

    def minibatch_loss(
        self, rows: Tensor, weight: Tensor, clip_coef: float, ent_coef: float, total_weight: Tensor, *columns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`loss` of rows [M] of the samples' columns [N, ...], with weights [M]; compiled, coefficients are tensors."""
        minibatch = Samples._make([*(column.index_select(0, rows) for column in columns), weight])
        return self.loss(minibatch, clip_coef, ent_coef, total_weight)

    def loss(self, samples: Samples, clip_coef: float, ent_coef: float, total_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 9 as a loss [], and the means [5] that `LOGGED` names."""
        config = self.config
        with self.fabric.autocast():
            parameters, value = self.agent(samples.features)
        policy = self.agent.head.policy(parameters)
        log_ratio = policy.logprob(samples.action) - samples.old_logprob
        ratio = log_ratio.exp()
        normalize = config.normalize_advantages
        advantage = standardize(samples.advantage, samples.weight) if normalize else samples.advantage
        objective = torch.stack(
            [
                policy_loss(ratio, advantage, clip_coef, config.dual_clip),
                value_loss(value, samples.old_value, samples.returns, clip_coef if config.clip_vloss else None),
                -policy.entropy(),
            ]
        )  # [3, M]
        sums = objective @ samples.weight
        total = sums[0] + config.vf_coef * sums[1] + ent_coef * sums[2]
        with torch.no_grad():  # k3 of Schulman 2020, joschu.net/blog/kl-approx.html
            approx_kl, clipped = (ratio - 1) - log_ratio, ((ratio - 1).abs() > clip_coef).float()
            diagnostics = torch.stack([approx_kl, clipped]) @ samples.weight
        means = torch.cat([sums.detach(), diagnostics]) / samples.weight.sum()
        return total if config.loss_reduction == "sum" else total / total_weight, means

    @torch.no_grad()
    def prepare(self, batch: Batch, features: Tensor) -> Samples:
        """Advantages and returns of a rollout with normalised features [T, B, F]; N = T·B samples."""
        config, steps, step = self.config, batch.steps, transitions(batch)
        with self.fabric.autocast():
            _, last_value = self.agent(self.agent.features(batch.last.obs))
        reward = self.reward_scaler(step) if config.normalize_reward else step.reward
        discount = config.gamma * (~step.terminated).float()
        trace = config.gae_lambda * (~step.done).float()
        value = steps.extras["value"]
        advantage = gae(reward, discount, value, shifted(value, last_value), trace, config.gae_method)
        columns = (features, steps.action, steps.extras["logprob"], value, advantage, advantage + value, step.weight)
        return Samples._make(column.flatten(0, 1) for column in columns)

    def metrics(self, logged: list[Tensor], norms: list[Tensor], coefs: dict[str, float]) -> Metrics:
        """What the log shows of an update; raises RunError where a loss or a gradient is not finite."""
        metrics: Metrics = dict(zip(LOGGED, torch.stack(logged).mean(0).tolist(), strict=True)) if logged else {}
        norm = torch.stack(norms) if norms else torch.zeros(1)
        finite = norm.isfinite()
        if not all(map(np.isfinite, metrics.values())) or not (finite.all() or self.optimizer.scales_loss):
            raise RunError(f"not finite after {self.updates} updates: {metrics}, gradient norm {norm[~finite]}")
        metrics["Info/grad_norm"] = norm[finite].mean().item() if finite.any() else 0.0
        scheduled = {"learning_rate": coefs["lr"], "ent_coef": coefs["ent_coef"], "clip_coef": coefs["clip_coef"]}
        return metrics | {f"Info/{name}": value for name, value in scheduled.items()}

    def state_dict(self) -> State:
        """Parameters, normalisers, optimizer and counter."""
        return {name: getattr(self, name).state_dict() for name in SAVED} | {"updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`."""
        for name in SAVED:
            getattr(self, name).load_state_dict(state[name])
        self.updates = state["updates"]


def build(config: Config, distribution: str, spec: EnvSpec, fabric: Fabric, seed: int) -> tuple[Learner, Rollout, Plan]:
    """The three parts that rlcore.train.loop needs, with weights drawn from the seed's `init` stream."""
    check_keys(spec, config.mlp_keys.encoder, config.cnn_keys.encoder)
    rng = torch.Generator().manual_seed(streams.integer(seed, "init"))
    learner = Learner(Agent(config, spec, distribution, rng), config, fabric)
    return learner, Rollout(), Plan(config.total_steps, config.rollout_steps)
