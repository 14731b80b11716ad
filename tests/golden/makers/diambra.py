"""Write diambra.json: messages and episodes of DIAMBRA's client and SheepRL's wrapper.

Run with a Python that has SheepRL 0.8.4, and DIAMBRA's packages, which require an older protobuf:

    pip install --no-deps --target PEER diambra==0.0.20 diambra-arena==2.2.7 diambra-engine==2.2.4
    pip install --no-deps --target PEER dacite inputs screeninfo
    .venv/bin/python -m tests.diambra_engine 1       prints the address of an engine, and ends with its input
    DIAMBRA_ENVS=ADDRESS PYTHONPATH=PEER:. PYTHON -m tests.golden.makers.diambra

The engine is that of the tests: the file shows that our client and the original exchange the same messages.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from typing import Any

import numpy as np
from diambra.engine import interface_pb2 as theirs
from gymnasium.utils.seeding import np_random
from sheeprl.envs.diambra import DiambraWrapper

from tests.golden.diambra_cases import CASES, SEEDS, STEPS, digest, scripted
from tests.golden.makers.files import lines, write_text


def example_messages() -> dict[str, str]:
    """Return messages with a value in every used field, serialized by the original classes, in hex."""
    episode = theirs.EnvSettings.EpisodeSettings(
        random_seed=3,
        difficulty=4,
        continue_game=-2.5,
        show_final=True,
        tower=2,
        player_settings=[
            theirs.EnvSettings.EpisodeSettings.PlayerSettings(
                role=theirs.P2,
                characters=["Ryu", "Ken"],
                outfits=5,
                super_art=6,
                fighting_style=7,
                ultimate_style={"dash": 8, "evade": 9, "bar": 10},
                speed_mode=11,
            )
        ],
    )
    settings = theirs.EnvSettings(
        game_id="doapp",
        frame_shape={"h": 64, "w": 32, "c": 1},
        step_ratio=6,
        n_players=1,
        disable_keyboard=True,
        disable_joystick=True,
        rank=12,
        action_spaces=[theirs.MULTI_DISCRETE, theirs.DISCRETE],
        episode_settings=episode,
    )
    init = theirs.EnvInitResponse()
    actions = init.available_actions
    actions.n_moves, actions.n_attacks, actions.n_attacks_no_comb = 9, 8, 4
    actions.moves.add(key="Left", label="L")
    actions.attacks.add(key="But1", label="A")
    init.frame_shape.h, init.frame_shape.w, init.frame_shape.c = 480, 512, 3
    init.cumulative_reward_bounds.min, init.cumulative_reward_bounds.max = -100, 200
    info = init.characters_info
    info.char_list.extend(["Ryu", "Ken"])
    info.char_forbidden_list.append("Gill")
    info.char_homonymy_map["Tiger"] = "Eddy"
    info.chars_per_round, info.chars_to_select = 1, 2
    info.partner_list.append("Roll")
    init.difficulty_bounds.min, init.difficulty_bounds.max = 1, 8
    state = init.ram_states_categories[theirs.P1].ram_states[theirs.health]
    state.type, state.min, state.max = theirs.BOX, -1, 160
    answer = theirs.StepResetResponse(reward=-7)
    answer.observation.frame = b"\x00\x01\xff"
    answer.observation.ram_states_categories[theirs.common].ram_states[theirs.timer] = 40
    answer.info.game_states[theirs.round_done] = True
    action = theirs.Actions(actions=[theirs.Actions.Action(move=3, attack=5)])
    found = {"EnvSettings": settings, "EnvInitResponse": init, "StepResetResponse": answer, "Actions": action}
    return {name: message.SerializeToString(deterministic=True).hex() for name, message in found.items()}


def describe(space: Any) -> dict[str, Any]:
    """Return shape and bounds of every key."""
    return {
        key: {"shape": list(box.shape), "low": np.ravel(box.low).min().item(), "high": np.ravel(box.high).tolist()}
        for key, box in sorted(space.spaces.items())
        if key != "frame"
    } | {"frame": {"shape": list(space["frame"].shape)}}


def play(case: dict[str, Any]) -> dict[str, Any]:
    """Return the spaces, and the digest of every time step at the beginning of an episode."""
    arguments = {key: value for key, value in case.items() if key != "id"}
    groups = {key: dict(arguments.get(key, {})) for key in ("diambra_settings", "diambra_wrappers")}
    groups["diambra_settings"]["splash_screen"] = False
    for key in ("characters", "ultimate_style"):
        if isinstance(value := groups["diambra_settings"][key], list):
            groups["diambra_settings"][key] = tuple(value)
    env = DiambraWrapper(case["id"], **(arguments | groups))
    digests = []
    for seed in SEEDS:
        # As our client draws it: the original reset passes the number itself to the engine.
        obs, _ = env.reset(seed=int(np_random(seed)[0].integers(2**31 - 1)))
        digests.append(digest(obs, 0.0, False))
        for step in range(STEPS):
            obs, reward, terminated, _, _ = env.step(scripted(env.action_space, step))
            digests.append(digest(obs, float(reward), bool(terminated)))
            if terminated:
                break
    found = {"keys": describe(env.observation_space), "digests": hashlib.sha256("".join(digests).encode()).hexdigest()}
    env.env.unwrapped.arena_engine.close()  # the original close() needs a window
    return found | {"first": digests[:3], "action": str(env.action_space), "arrivals": len(digests)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    episodes = {name: play(case) for name, case in CASES.items()}
    messages = json.dumps(example_messages(), indent=1)
    write_text("diambra", f'{{"messages": {messages},\n"episodes": {lines(episodes)}}}\n')
