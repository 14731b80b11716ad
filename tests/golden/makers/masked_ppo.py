"""Write the golden values of action masks: results of MaskablePPO of sb3-contrib, minibatch order given, in float64.

masked_ppo_<actions>.npz    log-probabilities, entropies, and weights before and after MaskablePPO.train()
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO

from tests.golden.fixtures import tensors
from tests.golden.makers.files import versions, write_arrays, write_settings
from tests.golden.makers.ppo import ACTIONS, COMMON, EPOCHS, OBS, SAMPLES, UNITS, fill, make_model, train, weights_of
from tests.golden.makers.sb3 import compute_in_float64

MASKED = ("discrete", "multi_discrete")


def nvec_of(space: Any) -> list[int]:
    """Return the number of choices of each sub-action."""
    return [int(space.n)] if isinstance(space, spaces.Discrete) else [int(count) for count in space.nvec]


def draw_masks(nvec: list[int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return masks [SAMPLES, sum(nvec)] that forbid about half of the choices, and one allowed action for each row."""
    columns, actions = [], []
    for count in nvec:
        mask, taken = rng.random((SAMPLES, count)) < 0.4, rng.integers(0, count, SAMPLES)
        mask[np.arange(SAMPLES), taken] = True
        columns.append(mask)
        actions.append(taken)
        assert (mask.sum(1) == 1).sum() > 10 and mask.all(1).any(), "a single or every choice is hardly ever allowed"
    return np.concatenate(columns, 1), np.stack(actions, 1)


def evaluate(model: Any, samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return value, log-probability and entropy of every sample."""
    data = tensors(samples)
    action = data["action"].flatten() if data["action"].shape[1] == 1 else data["action"]
    with torch.no_grad():
        found = model.policy.evaluate_actions(data["features"], action, action_masks=data["mask"])
    return dict(zip(("value", "logprob", "entropy"), (part.flatten().numpy() for part in found), strict=True))


def make_samples(model: Any, space: spaces.Space) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs on both sides of the clip, with advantages of both signs, and what the model computes for them."""
    rng = np.random.default_rng(11)
    obs = rng.standard_normal((SAMPLES, OBS)).astype(np.float32).astype(np.float64)
    mask, action = draw_masks(nvec_of(space), rng)
    samples = {"features": obs, "action": action, "mask": mask}
    found = evaluate(model, samples)
    old_value, advantage = found["value"] + rng.normal(0, 0.4, SAMPLES), rng.normal(0.3, 1.5, SAMPLES)
    samples |= {
        "old_logprob": found["logprob"] + rng.normal(0, 0.35, SAMPLES),
        "old_value": old_value,
        "advantage": advantage,
        "returns": old_value + advantage,
    }
    return samples, found


def fixture(name: str) -> None:
    """Write the results for one kind of action."""
    space = ACTIONS[name]
    initial = weights_of(make_model(space, COMMON, algorithm=MaskablePPO))
    model = make_model(space, COMMON, initial, algorithm=MaskablePPO)
    samples, found = make_samples(model, space)
    rng = np.random.default_rng(17)
    orders = np.stack([rng.permutation(SAMPLES) for _ in range(EPOCHS)])
    fill(model, samples)
    model.rollout_buffer.action_masks = samples["mask"][:, None].astype(np.float64)
    logged = train(model, orders)
    content: dict[str, np.ndarray] = {f"initial/{k}": v for k, v in initial.items()}
    content |= {f"samples/{k}": v for k, v in samples.items()} | {f"found/{k}": v for k, v in found.items()}
    content |= {f"final/{k}": v for k, v in weights_of(model).items()}
    content |= {f"logged/{k}": np.asarray(v) for k, v in logged.items()} | {"orders": orders}
    write_arrays(f"masked_ppo_{name}", content)


def main() -> None:
    """Write every file and the settings."""
    compute_in_float64()
    for name in MASKED:
        fixture(name)
    packages = ("sb3_contrib", "stable_baselines3", "torch", "numpy", "gymnasium", "python")
    write_settings("masked_ppo", versions(*packages) | {"common": COMMON, "epochs": EPOCHS, "units": UNITS})


if __name__ == "__main__":
    main()
