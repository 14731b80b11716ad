"""Write the golden values of recurrent PPO: results of sb3-contrib's RecurrentPPO.train() for one rollout.

    recurrent_<actions>.npz     a rollout of LENGTH rows in our alignment, with episode ends inside sequences; for every
                                variant the weights after EPOCHS epochs in float64; losses and gradients of each of the
                                first epoch's minibatches

RecurrentPPO has one row per transition, we one per observation: the last observation of an episode is a row here, and
left out there. It cuts sequences where an episode begins; ours continue with an empty carry. Its critic has its own
LSTM, or one that the value loss does not reach; here both are one module, which both losses reach. The previous action
is no input of its policy: it is appended to the observation, 0 where an episode begins.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from tests.golden.makers.files import versions, write_arrays, write_settings
from tests.golden.makers.ppo import ACTIONS, COMMON, EPOCHS, OBS, UNITS, advantages, train, weights_of
from tests.golden.makers.sb3 import Blank, compute_in_float64, without_log

LENGTH, ENVS, GAMMA, LAMBDA = 26, 3, 0.98, 0.9
ENDS = (  # environment -> row of an episode's last observation -> whether it terminated (otherwise truncated)
    {5: True, 20: False},  # within the first and the third sequence
    {0: False, 17: True, 25: False},  # first and last row of the rollout; first row of the third sequence
    {7: True, 16: False, LENGTH: True},  # last rows of two sequences; the arrival after the rollout
)
CUTS = {"parts": (0, 8, 17, LENGTH), "whole": (0, LENGTH)}  # 26 rows in parts of at most 9, and as they are
MINIBATCHES = 2
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"cuts": "parts"},
    "raw_advantages": {"cuts": "parts", "normalize_advantages": False, "max_grad_norm": 0.0},
    "whole": {"cuts": "whole"},
}


def flags() -> dict[str, np.ndarray]:
    """Return terminated, truncated and is_first of rows and arrival, [T+1, B]; row 0 opens an episode in one."""
    found = {name: np.zeros((LENGTH + 1, ENVS), bool) for name in ("terminated", "truncated", "is_first")}
    found["is_first"][0, 0] = True
    for env, ends in enumerate(ENDS):
        for row, terminated in ends.items():
            found["terminated" if terminated else "truncated"][row, env] = True
            if row < LENGTH:
                found["is_first"][row + 1, env] = True
    return found


def encode(space: spaces.Space, action: np.ndarray) -> np.ndarray:
    """Return actions [..., A] as numbers, discrete ones one-hot."""
    if isinstance(space, spaces.Box):
        return action
    sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec
    return np.concatenate([np.eye(n)[action[..., i]] for i, n in enumerate(sizes)], -1)


def make_model(space: spaces.Space, setting: dict[str, Any], weights: dict[str, np.ndarray] | None = None) -> Any:
    """Return RecurrentPPO in float64 with one LSTM for actor and critic."""
    size = OBS + encode(space, np.zeros((1, len(np.atleast_1d(space.sample()))), np.int64)).shape[-1]
    env = Blank(spaces.Box(-10.0, 10.0, (size,), np.float32), space)
    kinds = {"net_arch": [UNITS, UNITS], "lstm_hidden_size": UNITS, "optimizer_kwargs": {"eps": setting["eps"]}}
    how = {name: setting[name] for name in ("ent_coef", "vf_coef")}
    how |= {"clip_range": setting["clip_coef"], "max_grad_norm": setting["max_grad_norm"] or float("inf")}
    how |= {"normalize_advantage": setting["normalize_advantages"], "learning_rate": setting["lr"]}
    model = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=LENGTH, n_epochs=EPOCHS, policy_kwargs=kinds, seed=7, device="cpu", **how
    )
    policy = model.policy.double()
    policy.lstm_critic = policy.lstm_actor
    if weights is None:
        noise = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
    else:
        policy.load_state_dict({name: torch.from_numpy(weights[actors(name)]) for name in policy.state_dict()})
    policy.optimizer = torch.optim.Adam(policy.parameters(), lr=setting["lr"], eps=setting["eps"])
    return without_log(model)


def actors(name: str) -> str:
    """Return the name that a parameter of the shared LSTM has in the actor."""
    return name.replace("lstm_critic", "lstm_actor")


def own_weights(model: Any) -> dict[str, np.ndarray]:
    """Return the parameters by SB3's names, those of the LSTM once."""
    return {name: value for name, value in weights_of(model).items() if name == actors(name)}


def play(model: Any, space: spaces.Space) -> dict[str, np.ndarray]:
    """Return a random rollout [T+1, B] with its arrival, and carries, values and log-probabilities of the policy."""
    rng = np.random.default_rng(11)
    space.seed(5)
    shape = (LENGTH + 1, ENVS)
    rows: dict[str, np.ndarray] = flags()
    rows["obs"] = rng.standard_normal((*shape, OBS)).astype(np.float32).astype(np.float64)
    rows["reward"] = rng.normal(0.5, 1.0, shape).astype(np.float32).astype(np.float64)
    drawn = [np.atleast_1d(space.sample()) for _ in range((LENGTH + 1) * ENVS)]
    rows["action"] = np.stack(drawn).reshape(*shape, -1)
    rows["action_before"] = np.stack([np.atleast_1d(space.sample()) for _ in range(ENVS)])
    earlier = np.concatenate([rows["action_before"][None], rows["action"][:-1]])
    previous = np.where(rows["is_first"][..., None], 0.0, encode(space, earlier))
    rows["seen"] = np.concatenate([rows["obs"], previous], -1)
    carry = torch.from_numpy(rng.normal(0, 0.5, (2, 1, ENVS, UNITS)))
    kept, values, logprobs = [], [], []
    for t in range(LENGTH + 1):
        # The stored carry differs slightly from that of the policy: sequences begin with the stored one.
        kept.append(carry[:, 0] + (torch.from_numpy(rng.normal(0, 0.1, (2, ENVS, UNITS))) if t < LENGTH else 0))
        states, starts = RNNStates(tuple(carry), tuple(carry)), torch.from_numpy(rows["is_first"][t]).double()
        given = torch.from_numpy(rows["action"][t])
        given = given.flatten() if isinstance(space, spaces.Discrete) else given
        with torch.no_grad():
            seen = torch.from_numpy(rows["seen"][t])
            value, logprob, _ = model.policy.evaluate_actions(seen, given, states, starts)
            carry = torch.stack(model.policy.forward(seen, states, starts)[3].pi)
        values.append(value.flatten().numpy())
        logprobs.append(logprob.numpy())
    rows |= {"h": np.stack([part[0] for part in kept]), "c": np.stack([part[1] for part in kept])}
    noise = rng.normal(0, 0.4, shape) * (np.arange(LENGTH + 1) < LENGTH)[:, None]  # the policy gives the last value
    rows["old_value"] = np.stack(values) + noise
    rows["old_logprob"] = np.stack(logprobs) + rng.normal(0, 0.35, shape)
    return rows


def add_advantages(rows: dict[str, np.ndarray]) -> None:
    """Add SB3's advantages and returns of every transition to the row in which it begins; 0 in reset rows."""
    rows |= {name: np.zeros((LENGTH + 1, ENVS)) for name in ("advantage", "returns")}
    for env in range(ENVS):
        begins = np.flatnonzero(counts(rows)[:, env])
        after = begins + 1
        data = {name: rows[name][after, env][:, None] for name in ("reward", "terminated", "truncated")}
        data |= {"value": rows["old_value"][begins, env][:, None]}
        data |= {"final_value": rows["old_value"][after, env][:, None]}
        buffer = advantages(data, rows["old_value"][after[-1], env][None], GAMMA, LAMBDA)
        rows["advantage"][begins, env] = buffer.advantages[:, 0]
        rows["returns"][begins, env] = buffer.advantages[:, 0] + data["value"][:, 0]


def counts(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return [T, B], whether a transition begins in a row."""
    return ~(rows["terminated"] | rows["truncated"])[:-1]


class Sequences:
    """Replacement of RecurrentRolloutBuffer.get: minibatches of given sequences, made by its own `_get_samples`."""

    def __init__(self, model: Any, rows: dict[str, np.ndarray], cuts: tuple[int, ...]) -> None:
        self.buffer, self.epochs = model.rollout_buffer, []
        kept = counts(rows).T.flatten()  # one environment after another
        names = {"observations": "seen", "actions": "action", "values": "old_value", "log_probs": "old_logprob"}
        names |= {"advantages": "advantage", "returns": "returns", "episode_starts": "is_first"}
        columns = {theirs: rows[ours][:-1].swapaxes(0, 1).reshape(len(kept), -1) for theirs, ours in names.items()}
        columns["episode_starts"] = columns["episode_starts"].astype(np.float64)
        for part, name in (("h", "hidden_states"), ("c", "cell_states")):
            carry = rows[part][:-1].swapaxes(0, 1).reshape(len(kept), 1, UNITS)
            columns |= {f"{name}_pi": carry, f"{name}_vf": carry}
        for name, column in columns.items():
            setattr(self.buffer, name, column[kept])
        place = np.cumsum(kept) - 1
        parts = [
            (b * LENGTH + first, b * LENGTH + last) for first, last in itertools.pairwise(cuts) for b in range(ENVS)
        ]
        self.sequences = [place[first:last][kept[first:last]] for first, last in parts]
        self.begins = np.zeros((kept.sum(), 1))
        self.begins[[places[0] for places in self.sequences]] = 1

    def __call__(self, batch_size: int) -> Any:
        for chosen in self.epochs.pop(0):
            rows = np.concatenate([self.sequences[i] for i in chosen])
            yield self.buffer._get_samples(rows, self.begins)


def minibatches_of(order: np.ndarray) -> list[np.ndarray]:
    """Return the sequences of each of MINIBATCHES minibatches in a given order, of equal size if possible."""
    size = -(-len(order) // MINIBATCHES)
    return [order[first : first + size] for first in range(0, len(order), size)]


def fixture(name: str) -> None:
    """Write a rollout and the results of every variant, for one kind of action."""
    space = ACTIONS[name]
    initial = own_weights(make_model(space, COMMON))
    rows = play(make_model(space, COMMON, initial), space)
    add_advantages(rows)
    content = {f"initial/{k}": v for k, v in initial.items()} | {f"rows/{k}": v for k, v in rows.items() if k != "seen"}
    rng = np.random.default_rng(17)
    orders = {kind: [rng.permutation(ENVS * (len(cuts) - 1)) for _ in range(EPOCHS)] for kind, cuts in CUTS.items()}
    content |= {f"orders/{kind}": np.stack(order) for kind, order in orders.items()}
    for variant, changes in VARIANTS.items():
        setting, kind = COMMON | changes, changes["cuts"]
        epochs = [minibatches_of(order) for order in orders[kind]]
        model = make_model(space, setting, initial)
        model.rollout_buffer.get = get = Sequences(model, rows, CUTS[kind])
        get.epochs = list(epochs)
        logged = train(model, [])
        if setting["max_grad_norm"]:
            assert logged["grad_norm"] > setting["max_grad_norm"], "the gradient clip is not active"
        content |= {f"final/{variant}/{k}": v for k, v in own_weights(model).items()}
        content |= {f"logged/{variant}/{k}": v for k, v in logged.items()}
    for k, chosen in enumerate(minibatches_of(orders["parts"][0])):
        model = make_model(space, COMMON | {"max_grad_norm": 0.0}, initial)
        model.n_epochs, model.policy.optimizer.step = 1, lambda: None  # keep the gradients
        model.rollout_buffer.get = get = Sequences(model, rows, CUTS["parts"])
        get.epochs = [[chosen]]
        content |= {f"loss/{k}/{name}": value for name, value in train(model, []).items() if name.endswith("loss")}
        for parameter, value in model.policy.named_parameters():
            content[f"gradient/{k}/{parameter}"] = value.grad.numpy()
    write_arrays(f"recurrent_{name}", content)


def main() -> None:
    """Write every file and the settings."""
    compute_in_float64()
    for name in ACTIONS:
        fixture(name)
    description = versions("sb3_contrib", "torch", "numpy", "python") | {
        "variants": VARIANTS,
        "sequence_lengths": {"parts": 9, "whole": None},
        "minibatches": MINIBATCHES,
        "gamma": GAMMA,
        "gae_lambda": LAMBDA,
    }
    write_settings("recurrent", description)


if __name__ == "__main__":
    main()
