"""Weights, batches and noise of SAC-AE's golden values, for the fixture script and the check."""

from __future__ import annotations

import zlib

import numpy as np

SIDE, FRAMES, VECTOR, ACTIONS, UNITS, FEATURES, BATCH, STEPS = 16, 2, 3, 2, 8, 5, 12, 6
GAMMA, TAU, ENCODER_TAU, ALPHA, LR, EPS = 0.97, 0.1, 0.3, 0.3, 1e-3, 1e-6
L2, DECAY = 0.5, 0.02  # large enough to change the weights visibly
ACTOR_FREQ, TARGET_FREQ, DECODER_FREQ = 2, 2, 3


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a random parameter by its SheepRL name; targets differ from the critics, shared ones are equal."""
    tied = name.replace("_actor.encoder.cnn_encoder._model", "_critic.encoder.cnn_encoder._model")
    tied = tied.replace("_actor.encoder.mlp_encoder", "_critic.encoder.mlp_encoder")
    numbers = np.random.default_rng(zlib.crc32(tied.encode())).normal(size=shape)
    if len(shape) == 1:
        return 0.1 * numbers + name.endswith("_model.1.weight")  # of LayerNorm: around 1
    return numbers / np.sqrt(np.prod(shape[1:]))


def batch(step: int) -> dict[str, np.ndarray]:
    """Return transitions [BATCH] of a step; vectors are float32 numbers, as from an environment."""
    rng = np.random.default_rng([1, step])
    frames = rng.integers(0, 256, (BATCH, FRAMES + 1, SIDE, SIDE), np.uint8)
    vectors = rng.normal(size=(2, BATCH, VECTOR)).astype(np.float32).astype(np.float64)
    return {
        "rgb": frames[:, :-1],
        "next_rgb": frames[:, 1:],
        "state": vectors[0],
        "next_state": vectors[1],
        "u": rng.normal(size=(BATCH, ACTIONS)) / 2,
        "reward": rng.normal(size=BATCH),
        "done": (rng.random(BATCH) < 0.3).astype(np.float64),
    }


def noise(step: int) -> dict[str, np.ndarray]:
    """Return the noise of a step: of the target actions, of the actor, and of the reconstruction targets."""
    rng = np.random.default_rng([2, step])
    pair = rng.normal(size=(2, BATCH, ACTIONS))
    return {"target": pair[0], "actor": pair[1], "pixels": rng.random((BATCH, FRAMES, SIDE, SIDE))}
