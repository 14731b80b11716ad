"""Settings with which DIAMBRA's client and ours play the same episodes, and the format of the results."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

SEEDS, STEPS = (0, 1), 150
GAMES = {
    "doapp": "Kasumi",
    "sfiii3n": "Ryu",
    "tektagt": ["Jin", "Yoshimitsu"],
    "umk3": "Sub-Zero",
    "samsh5sp": "Kyoshiro",
    "kof98umh": ["Kyo", "Benimaru", "Daimon"],
    "mvsc": ["Ryu", "Spider Man"],
    "xmvsf": ["Cyclops", "Ryu"],
    "soulclbr": "Rock",
}
# Everything is set, because the original draws missing values from Python's global generator.
SETTINGS: dict[str, Any] = {
    "role": "P1",
    "difficulty": 3,
    "tower": 3,
    "super_art": 1,
    "fighting_style": 1,
    "speed_mode": 1,
}
RELATIVE: dict[str, Any] = {"add_last_action": True, "role_relative": True}


def case(game: str, settings: dict[str, Any] | None = None, wrappers: Any = RELATIVE, **more: Any) -> dict[str, Any]:
    """Return `env.wrapper` of a game with its id."""
    own = SETTINGS | {"characters": GAMES[game], "ultimate_style": [1, 2, 1]} | (settings or {})
    return {"id": game, "diambra_settings": own, "diambra_wrappers": wrappers, **more}


CASES = {
    **{f"{game} {kind}": case(game, action_space=kind) for game in GAMES for kind in ("DISCRETE", "MULTI_DISCRETE")},
    "second player": case("sfiii3n", {"role": "P2"}),
    "players by name": case("mvsc", {"role": "P2"}, {}),
    "gray": case("doapp", grayscale=True, screen_size=32),
    "slow": case("umk3", {"step_ratio": 2, "continue_game": -1.0}),
    "single buttons": case("xmvsf", wrappers=RELATIVE | {"no_attack_buttons_combinations": True}),
    "stacked": case("doapp", wrappers=RELATIVE | {"stack_actions": 3}),
    "stacked pairs": case("doapp", wrappers=RELATIVE | {"stack_actions": 3}, action_space="MULTI_DISCRETE"),
    "normalised": case("kof98umh", wrappers={"normalize_reward": True, "normalization_factor": 0.25}),
    "clipped": case("soulclbr", wrappers={"clip_reward": True}),
    "filtered": case("tektagt", wrappers=RELATIVE | {"filter_keys": ["own_health_1", "timer"]}),
}


def scripted(space: Any, step: int) -> Any:
    """Return an action of a Discrete or MultiDiscrete space for the number of the step."""
    if hasattr(space, "nvec"):
        return np.array([(5 * step) % int(space.nvec[0]), (3 * step + 1) % int(space.nvec[1])])
    return (7 * step + 3) % int(space.n)


def digest(obs: dict[str, np.ndarray], reward: float, terminated: bool) -> str:
    """Return the digest of a time step, independent of dtypes."""
    parts = [f"{key}{np.asarray(obs[key]).ravel().tolist()}" for key in sorted(obs) if key != "frame"]
    content = hashlib.sha256("".join(parts).encode())
    content.update(obs["frame"].tobytes() + f"{reward!r}{terminated}".encode())
    return content.hexdigest()[:16]
