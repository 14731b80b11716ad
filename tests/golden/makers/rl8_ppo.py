"""Write the golden values of rl8: results of its feedforward and recurrent PPO for scripted environments.

    rl8_<case>.npz     for every variant, with one row per update: the rollout as rl8 collected it, the minibatch orders
                       that it drew, what its `step()` reports, and the weights after it, as one vector; the initial
                       weights, which all variants share

rl8's `collect()` plays the rollout in an environment whose observations and rewards are a fixed tape, and computes the
scale of the rewards. Then noise is added to the stored log-probabilities, so that the first ratio is not 1, and
`step()` trains. Everything is float64.

rl8 has no episode ends; an environment is reset after every rollout, or never. If it is never reset, the reversed
discounted returns should continue, but rl8 sets them to 0 after each `step()`; so this variant does not scale rewards.
rl8 counts schedules in environments times rollouts instead of transitions, and the schedules here are written so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rl8 import AlgorithmConfig, RecurrentAlgorithmConfig
from rl8.data import DataKeys
from rl8.distributions import Normal
from rl8.env import Env
from rl8.models import GenericModel, GenericRecurrentModel
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, Composite, Unbounded

from tests.golden.makers.files import versions, write_arrays, write_settings

ENVS, HORIZON, OBS, CHOICES, ACTIONS, UNITS, UPDATES = 6, 8, 3, 4, 2, 6, 2
COMMON: dict[str, Any] = {
    "horizon": HORIZON,
    "num_envs": ENVS,
    "gamma": 0.9375,  # exact in float32
    "gae_lambda": 0.875,
    "num_sgd_iters": 3,
    "sgd_minibatch_size": 16,
    "entropy_coeff": 0.05,
    "vf_coeff": 0.5,
    "max_grad_norm": 0.6,
    "optimizer_config": {"lr": 1e-2, "eps": 1e-4},
}
SCHEDULES: dict[str, Any] = {  # counted in environments times rollouts, see above
    "lr_schedule": [(0, 1e-2), (ENVS, 4e-3), (2 * ENVS, 1e-3)],
    "entropy_coeff_schedule": [(0, 0.2), (ENVS, 0.1), (2 * ENVS, 0.0625)],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "minibatches": {},
    "whole_rollout": {"sgd_minibatch_size": None},
    "in_order": {"shuffle_minibatches": False},
    "accumulate": {"accumulate_grads": True},
    "dual_clip": {"dual_clip_param": 1.5},
    "target_kl": {"target_kl_div": 0.04},
    "value_cap": {"vf_clip_param": 0.25},
    "raw": {"normalize_advantages": False, "normalize_rewards": False, "max_grad_norm": 1e9},
    "never_reset": {"horizons_per_env_reset": -1, "normalize_rewards": False},
    "step_schedules": SCHEDULES,
    "linear_schedules": {
        "lr_schedule": [(0, 1e-2), (2 * ENVS, 1e-3)],
        "entropy_coeff_schedule": [(0, 0.2), (2 * ENVS, 0.1)],
        "lr_schedule_kind": "interp",
        "entropy_coeff_schedule_kind": "interp",
    },
}
RECURRENT: dict[str, Any] = {"seq_len": 4, "seqs_per_state_reset": 2, "sgd_minibatch_size": 4}
RECURRENT_VARIANTS = VARIANTS | {
    "reset_every_sequence": {"seqs_per_state_reset": 1},
    "reset_over_rollouts": {"seqs_per_state_reset": 4, "horizons_per_env_reset": -2, "normalize_rewards": False},
    "states_never_reset": {"seqs_per_state_reset": -1},
}


class Tape(Env):
    """Environment with fixed observations and rewards; an observation ends with the previous action, one-hot."""

    def __init__(self, num_envs: int, /, horizon: int | None = None, *, device: str = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        rng = np.random.default_rng(5)
        count = UPDATES * (HORIZON + 1) + 1
        self.rows = torch.from_numpy(rng.standard_normal((count, num_envs, OBS)).astype(np.float32)).double()
        self.rewards = torch.from_numpy(rng.normal(0.3, 2.0, (count, num_envs, 1)).astype(np.float32)).double()
        self.row, self.observation_spec = 0, Unbounded(shape=torch.Size([OBS + self.encoded]), device=device)

    encoded = 0

    def encode(self, action: torch.Tensor | None) -> torch.Tensor:
        """Return what an observation says of the action before it, [B, encoded]; `action` is None after a reset."""
        return torch.zeros(self.num_envs, 0)

    def observe(self, action: torch.Tensor | None) -> torch.Tensor:
        """Return the next observation of the tape."""
        self.row += 1
        return torch.cat([self.rows[self.row], self.encode(action)], -1)

    def reset(self, *, config: dict[str, Any] | None = None) -> torch.Tensor:
        """Continue the tape; a reset does not rewind it."""
        return self.observe(None)

    def step(self, action: torch.Tensor) -> TensorDict:
        """Return the next observation and reward; the action has no effect on them."""
        out = {DataKeys.OBS: self.observe(action), DataKeys.REWARDS: self.rewards[self.row]}
        return TensorDict(out, batch_size=self.num_envs, device=self.device)


class DiscreteTape(Tape):
    """Tape with one discrete action."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.action_spec = Categorical(CHOICES, shape=torch.Size([1]))


class ContinuousTape(Tape):
    """Tape with continuous actions."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.action_spec = Unbounded(shape=torch.Size([ACTIONS]))


class DiscreteTapeOfActions(DiscreteTape):
    """Tape with one discrete action, which the next observation contains."""

    encoded = CHOICES

    def encode(self, action: torch.Tensor | None) -> torch.Tensor:
        """Return the previous action, one-hot; zeros after a reset."""
        if action is None:
            return torch.zeros(self.num_envs, CHOICES)
        return nn.functional.one_hot(action[:, 0], CHOICES).double()


class ContinuousTapeOfActions(ContinuousTape):
    """Tape with continuous actions, which the next observation contains."""

    encoded = ACTIONS

    def encode(self, action: torch.Tensor | None) -> torch.Tensor:
        """Return the previous action in float32, as our agent reads it; zeros after a reset."""
        return torch.zeros(self.num_envs, ACTIONS) if action is None else action.float().double()


class NormalModel(GenericModel):
    """Two MLPs, and a log standard deviation that does not depend on the observation (rl8's default depends on it)."""

    def __init__(self, observation_spec: Unbounded, action_spec: Unbounded, /) -> None:
        super().__init__(observation_spec, action_spec)
        layers = [nn.Linear(OBS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, ACTIONS)]
        self.feature_model = nn.Sequential(*layers)
        layers = [nn.Linear(OBS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, 1)]
        self.vf_model, self.log_std = nn.Sequential(*layers), nn.Parameter(torch.zeros(ACTIONS))

    def forward(self, batch: TensorDict, /) -> TensorDict:
        """Return mean and log std [B, A]."""
        mean = self.feature_model(batch[DataKeys.OBS])
        self.value = self.vf_model(batch[DataKeys.OBS])
        return TensorDict({"mean": mean, "log_std": self.log_std.expand_as(mean)}, batch_size=batch.batch_size)

    def value_function(self) -> torch.Tensor:
        """Return the values of the last batch, [B, 1]."""
        return self.value


class RecurrentNormalModel(GenericRecurrentModel):
    """LSTM with linear heads, and a log standard deviation that does not depend on the observation."""

    def __init__(self, observation_spec: Unbounded, action_spec: Unbounded, /) -> None:
        super().__init__(observation_spec, action_spec)
        names = (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)
        self.state_spec = Composite({name: Unbounded(shape=torch.Size([1, UNITS])) for name in names})
        self.lstm = nn.LSTM(OBS + ACTIONS, UNITS, batch_first=True)
        self.feature_head, self.vf_head = nn.Linear(UNITS, ACTIONS), nn.Linear(UNITS, 1)
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def forward(self, batch: TensorDict, states: TensorDict, /) -> tuple[TensorDict, TensorDict]:
        """Return mean and log std [B·T, A], and the states after the last step."""
        names = (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)
        before = tuple(states[name][:, 0].permute(1, 0, 2).contiguous() for name in names)
        latents, after = self.lstm(batch[DataKeys.OBS], before)
        mean = self.feature_head(latents).reshape(-1, ACTIONS)
        self.value = self.vf_head(latents).reshape(-1, 1)
        features = TensorDict({"mean": mean, "log_std": self.log_std.expand_as(mean)}, batch_size=len(mean))
        carried = {name: part.permute(1, 0, 2) for name, part in zip(names, after, strict=True)}
        return features, TensorDict(carried, batch_size=batch.size(0))

    def value_function(self) -> torch.Tensor:
        """Return the values of the last batch, [B·T, 1]."""
        return self.value


CASES: dict[str, dict[str, Any]] = {
    "discrete": {"config": AlgorithmConfig, "env": DiscreteTape, "variants": VARIANTS}
    | {"changes": {"model_config": {"hiddens": (UNITS, UNITS)}}},
    "continuous": {"config": AlgorithmConfig, "env": ContinuousTape, "variants": VARIANTS}
    | {"changes": {"model_cls": NormalModel, "distribution_cls": Normal}},
    "recurrent_discrete": {
        "config": RecurrentAlgorithmConfig,
        "env": DiscreteTapeOfActions,
        "variants": RECURRENT_VARIANTS,
        "changes": RECURRENT | {"model_config": {"hidden_size": UNITS}},
    },
    "recurrent_continuous": {
        "config": RecurrentAlgorithmConfig,
        "env": ContinuousTapeOfActions,
        "variants": RECURRENT_VARIANTS,
        "changes": RECURRENT | {"model_cls": RecurrentNormalModel, "distribution_cls": Normal},
    },
}


def make_algorithm(case: dict[str, Any], setting: dict[str, Any]) -> Any:
    """Return an algorithm in float64 whose weights do not depend on the setting."""
    torch.manual_seed(3)
    algorithm = case["config"](device="cpu", **COMMON | case["changes"] | setting).build(case["env"])
    algorithm.env.row = 0  # `build` has played a step
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in algorithm.policy.model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise)
    return algorithm


def weights_of(algorithm: Any) -> dict[str, np.ndarray]:
    """Return a copy of the parameters by rl8's names."""
    return {name: value.detach().numpy().copy() for name, value in algorithm.policy.model.named_parameters()}


def rollout_of(algorithm: Any) -> dict[str, np.ndarray]:
    """Return the rollout in rl8's buffer, [B, T+1, ...], with the recurrent states of every `seq_len`-th row only."""
    names = {"obs": DataKeys.OBS, "action": DataKeys.ACTIONS, "reward": DataKeys.REWARDS}
    names |= {"logprob": DataKeys.LOGP, "value": DataKeys.VALUES}
    rows = {ours: algorithm.buffer[theirs] for ours, theirs in names.items()}
    if DataKeys.STATES in algorithm.buffer.keys():  # noqa: SIM118  iteration over a TensorDict yields its rows
        states = algorithm.buffer[DataKeys.STATES]
        first = slice(
            None, None, algorithm.hparams.seq_len
        )  # first rows of the sequences, and the row after the rollout
        names = {"h": DataKeys.HIDDEN_STATES, "c": DataKeys.CELL_STATES}
        rows |= {ours: states[theirs][:, first, 0] for ours, theirs in names.items()}
    return {name: value.numpy().copy() for name, value in rows.items()}


def train(algorithm: Any) -> tuple[dict[str, float], np.ndarray]:
    """Call `step()`; return what it reports, the number of optimizer steps, and the orders of its epochs."""
    orders, taken, seq_len = [], [], getattr(algorithm.hparams, "seq_len", 1)
    count = ENVS * HORIZON // seq_len
    permute, step = torch.randperm, algorithm.optimizer.step

    def watched_randperm(*arguments: Any, **keywords: Any) -> torch.Tensor:
        orders.append(permute(*arguments, **keywords))
        return orders[-1]

    def watched_step(*arguments: Any, **keywords: Any) -> Any:
        taken.append(1)
        return step(*arguments, **keywords)

    torch.randperm, algorithm.optimizer.step = watched_randperm, watched_step
    try:
        stats = algorithm.step()
    finally:
        torch.randperm, algorithm.optimizer.step = permute, step
    kept = {name: value for name, value in stats.items() if name.startswith(("losses/", "monitors/", "coefficients/"))}
    orders += [torch.arange(count)] * (COMMON["num_sgd_iters"] - len(orders))  # of epochs after the KL stop
    return kept | {"steps": len(taken)}, np.stack(orders)


def fixture(name: str) -> dict[str, int]:
    """Write the file of one case; return the number of optimizer steps of each variant's first update."""
    case, content, taken = CASES[name], dict[str, Any](), dict[str, int]()
    for variant, setting in case["variants"].items():
        algorithm = make_algorithm(case, setting)
        content |= {f"initial/{k}": v for k, v in weights_of(algorithm).items()}
        noise = torch.Generator().manual_seed(11)
        torch.manual_seed(7)
        updates = []
        for _ in range(UPDATES):
            algorithm.collect()
            logprob = algorithm.buffer[DataKeys.LOGP]
            logprob += 0.3 * torch.randn(logprob.shape, generator=noise)
            found = {f"rows/{k}": v for k, v in rollout_of(algorithm).items()}
            found |= {"reward_scale": algorithm.state.reward_scale, "lr": algorithm.optimizer.param_groups[0]["lr"]}
            stats, found["orders"] = train(algorithm)
            taken.setdefault(variant, stats["steps"])
            found |= {f"logged/{k}": v for k, v in stats.items()}
            found["final"] = np.concatenate([value.flatten() for value in weights_of(algorithm).values()])
            updates.append(found)
        content |= {f"{variant}/{k}": np.stack([found[k] for found in updates]) for k in updates[0]}
    write_arrays(f"rl8_{name}", content)
    return taken


def main() -> None:
    """Write every file and the settings."""
    torch.set_default_dtype(torch.float64)
    taken = {name: fixture(name) for name in CASES}
    every = taken["discrete"]["minibatches"]
    assert all(0 < steps["target_kl"] < every for steps in taken.values()), f"the KL stop is not active: {taken}"
    description = versions("rl8", "torch", "tensordict", "torchrl", "numpy", "python") | {
        "common": COMMON,
        "recurrent": RECURRENT,
        "variants": RECURRENT_VARIANTS,
        "units": UNITS,
        "updates": UPDATES,
        "steps": taken,
    }
    write_settings("rl8", description)


if __name__ == "__main__":
    main()
