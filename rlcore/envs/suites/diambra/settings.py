"""Keys of `env.wrapper` for DIAMBRA's games, and the protobuf messages to the engine that are built from them.

The keys have the names that SheepRL and DIAMBRA use. For a setting of an episode that is null (role, character, …), a
random value is drawn in every episode from the environment's random generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlcore.config.build import build
from rlcore.config.schema import arg
from rlcore.config.values import nearest, spell
from rlcore.envs.suites.diambra.messages import DISCRETE, MULTI_DISCRETE, P1, P2, messages
from rlcore.errors import Mistakes, UserError

ROLES = {"P1": P1, "P2": P2}
ACTIONS = {"DISCRETE": DISCRETE, "MULTI_DISCRETE": MULTI_DISCRETE}
PREFIXES = ("diambra.arena.Roles.", "diambra.arena.SpaceTypes.")  # prefixes of names in files of SheepRL 0.5
TOWERS, SUPER_ARTS, STYLES, ULTIMATES, SPEEDS = range(1, 5), range(1, 4), range(1, 3), range(1, 3), range(1, 3)
STYLES_OF = {"kof98umh": range(1, 4)}
LARGEST_FRAME, LARGEST_STACK = 512, 48


@dataclass(frozen=True)
class GameKeys:
    """Settings of the engine: the group `diambra_settings`.

    If a setting of an episode is null, for example the role, every episode draws a random value for it.
    """

    role: str | None = arg(None, "side of the player; null: random", choices=("P1", "P2", None))
    step_ratio: int = arg(6, "frames of the game per action", low=1, high=6)
    difficulty: int | None = arg(None, "difficulty of the opponent; its range depends on the game; null: random", low=1)
    continue_game: float = arg(
        0.0, "probability of continuing after a lost game; if negative, the number of continues", high=1
    )
    show_final: bool = arg(False, "show the game's final animation")
    tower: int | None = arg(
        3,
        "Ultimate Mortal Kombat 3: number of the tower, a sequence of opponents; null: random",
        choices=(*TOWERS, None),
    )
    characters: str | tuple[str | None, ...] | None = arg(
        None, "name of the character, or a list if the game selects several; null: random"
    )
    outfits: int = arg(1, "number of outfits to draw from", low=1)
    super_art: int | None = arg(None, "Street Fighter III: super art; null: random", choices=(*SUPER_ARTS, None))
    fighting_style: int | None = arg(None, "The King of Fighters '98: fighting style; null: random", low=1, high=3)
    ultimate_style: tuple[int, int, int] | None = arg(
        None, "The King of Fighters '98: dash, evade, bar; null: random", low=ULTIMATES[0], high=ULTIMATES[-1]
    )
    speed_mode: int | None = arg(
        None, "Marvel vs. Capcom, X-Men vs. Street Fighter: speed mode; null: random", choices=(*SPEEDS, None)
    )
    disable_keyboard: bool = arg(True, "ignore the keyboard")
    disable_joystick: bool = arg(True, "ignore joysticks")
    grpc_timeout: int = arg(60, "seconds to wait until the engine has started the game", low=1, high=3600)
    splash_screen: bool = arg(False, unused="there is no window to show it in")
    frame_shape: Any = arg(None, unused="env.screen_size and env.grayscale set it")
    n_players: Any = arg(None, unused="one agent plays against the game")
    seed: Any = arg(None, unused="the seed of the run sets it")
    rank: Any = arg(None, unused="every environment uses the next free engine")
    env_address: Any = arg(None, unused="DIAMBRA_ENVS has the addresses")
    render_mode: Any = arg(None, unused="videos are recorded from frames")
    game_id: Any = arg(None, unused="env.id names the game")


@dataclass(frozen=True)
class WrapperKeys:
    """Settings of actions, observations and rewards: the group `diambra_wrappers`."""

    no_op_max: int = arg(0, "maximum of random no-ops at the start of an episode (at least 1); 0: none", low=0, high=12)
    normalize_reward: bool = arg(False, "divide rewards by normalization_factor x full health")
    normalization_factor: float = arg(0.5, "factor in the divisor of rewards if normalize_reward is true", above=0)
    clip_reward: bool = arg(False, "replace rewards by their sign")
    no_attack_buttons_combinations: bool = arg(False, "leave out attacks that press several buttons at once")
    add_last_action: bool = arg(False, "add the observation key `action`, which has the last action")
    stack_actions: int = arg(
        1, "number of past actions in the observation key `action`, oldest first", low=1, high=LARGEST_STACK
    )
    scale: bool = arg(False, "scale numbers to [0, 1] and encode choices as one-hot")
    exclude_image_scaling: bool = arg(False, "with scale=true: keep frames as uint8")
    process_discrete_binary: bool = arg(False, "with scale=true: encode binary choices as one-hot too")
    role_relative: bool = arg(False, "name observation keys own_… and opp_… instead of P1_… and P2_…")
    filter_keys: tuple[str, ...] = arg([], "observation keys to keep in addition to frame; empty: all")
    wrappers: tuple[Any, ...] = arg([], "not supported: a config cannot name classes")
    repeat_action: Any = arg(None, unused="env.action_repeat sets it")
    flatten: Any = arg(None, unused="observations are always flat")
    frame_shape: Any = arg(None, unused="env.screen_size and env.grayscale set it")
    stack_frames: Any = arg(None, unused="env.frame_stack sets it")
    dilation: Any = arg(None, unused="env.frame_stack_dilation sets it")

    def check(self, prefix: str) -> None:
        """Raise UserError if values of these keys cannot be combined."""
        mistakes = Mistakes()
        if self.stack_actions > 1 and not self.add_last_action:
            mistakes.note(
                UserError(f"{prefix}stack_actions={self.stack_actions}: requires {prefix}add_last_action=true")
            )
        if self.wrappers:
            mistakes.note(
                UserError(
                    f"{prefix}wrappers={spell(list(self.wrappers))}: a config cannot name classes; remove the key"
                )
            )
        mistakes.raise_collected()


@dataclass(frozen=True)
class Keys:
    """All keys of `env.wrapper` for DIAMBRA's games."""

    action_space: str = arg(
        "DISCRETE", "DISCRETE: a move or an attack; MULTI_DISCRETE: a move and an attack", choices=tuple(ACTIONS)
    )
    screen_size: int | tuple[int, int] | None = arg(
        64, "size of frames in pixels; null: the game's size", low=1, high=LARGEST_FRAME
    )
    grayscale: bool = arg(False, "convert frames to one channel")
    repeat_action: int = arg(1, "number of repeats of each action; above 1, step_ratio is 1", low=1, high=12)
    increase_performance: bool = arg(
        True, "true: the engine resizes frames and converts them to gray; false: the training process does"
    )
    diambra_settings: GameKeys = arg(GameKeys(), "settings of the engine")
    diambra_wrappers: WrapperKeys = arg(WrapperKeys(), "settings of actions, observations and rewards")
    rank: Any = arg(None, unused="every environment uses the next free engine")
    log_level: Any = arg(None, unused="messages are written to the log of the run")

    @property
    def step_ratio(self) -> int:
        """Frames of the game per action sent to the engine."""
        return 1 if self.repeat_action > 1 else self.diambra_settings.step_ratio

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Height, width and number of channels of frames that are requested from the engine; 0: the game's value."""
        if not self.increase_performance:
            return 0, 0, 0
        size = self.screen_size or 0
        height, width = (size, size) if isinstance(size, int) else size
        return height, width, int(self.grayscale)


def read_keys(wrapper: Mapping[str, Any]) -> Keys:
    """Convert `env.wrapper` to `Keys`; raise one UserError that lists all invalid keys."""
    plain = {key: _short(value) for key, value in wrapper.items()}
    settings = plain.get("diambra_settings")
    if isinstance(settings, Mapping):
        plain["diambra_settings"] = {key: _short(value) for key, value in settings.items()}
    for group in ("diambra_settings", "diambra_wrappers"):
        if plain.get(group, "") is None:
            del plain[group]
    return build(Keys, plain, "env.wrapper.")


def _short(value: Any) -> Any:
    """Remove DIAMBRA's prefix: `diambra.arena.Roles.P1` becomes `P1`."""
    for prefix in PREFIXES:
        if isinstance(value, str) and value.startswith(prefix):
            return value.removeprefix(prefix)
    return value


def check_choices(settings: Mapping[str, Any], game: str, outfits: int) -> None:
    """Raise one UserError if the settings `outfits` and `fighting_style` are out of the game's range.

    The check does not need an engine.

    Args:
        settings: group `diambra_settings` as the user typed it. Values that are not integers are ignored, because
            `read_keys` reports them.
        game: the engine's id of the game.
        outfits: number of outfits (appearances of a character) in the game.

    Raises:
        UserError: A value is too large; the message lists all such values.
    """
    mistakes, most = Mistakes(), {"outfits": outfits, "fighting_style": STYLES_OF.get(game, STYLES)[-1]}
    for key, high in most.items():
        value = settings.get(key)
        if isinstance(value, int) and value > high:
            place = f"env.wrapper.diambra_settings.{key}"
            mistakes.note(UserError(f"{place}={value}: must be from 1 to {high} in {game}"))
    mistakes.raise_collected()


def check_game(keys: Keys, game: str, outfits: int, info: Any) -> None:
    """Raise one UserError if settings are not valid in the game; `info` is the engine's `EnvInitResponse`."""
    mistakes, settings, place = Mistakes(), keys.diambra_settings, "env.wrapper.diambra_settings."
    low, high, characters = info.difficulty_bounds.min, info.difficulty_bounds.max, info.characters_info
    if settings.difficulty is not None and not low <= settings.difficulty <= high:
        mistakes.note(
            UserError(f"{place}difficulty={settings.difficulty}: must be from {low} to {high} in {game}, or null")
        )
    with mistakes.catch():
        check_choices({key: getattr(settings, key) for key in ("outfits", "fighting_style")}, game, outfits)
    for name in named_characters(settings):
        if name is not None and name not in characters.char_list:
            known = sorted(characters.char_list)
            hint = nearest(name, known) or f"; its characters are {', '.join(known)}"
            mistakes.note(UserError(f"{place}characters={name}: not a character of {game}{hint}"))
    mistakes.raise_collected()


def named_characters(settings: GameKeys) -> tuple[str | None, ...]:
    """Return the characters that the user has chosen; None stands for a random character."""
    named = settings.characters
    return (named,) if isinstance(named, str) else named or ()


def draw_characters(settings: GameKeys, characters: Any, rng: np.random.Generator) -> list[str]:
    """Return as many characters as a player selects in the game; those that the user has not chosen are random.

    Some characters have several names. A random character never duplicates a character that is already selected, under
    any of its names.
    """
    chosen = dict(enumerate(named_characters(settings)[: characters.chars_to_select]))
    twins = dict(characters.char_homonymy_map)
    taken = {name for name in chosen.values() if name is not None}
    drawn: list[str] = []
    for place in range(characters.chars_to_select):
        name = chosen.get(place)
        if name is None:
            forbidden = {*characters.char_forbidden_list, *taken}
            forbidden |= {twin for name, twin in twins.items() if name in taken}
            forbidden |= {name for name, twin in twins.items() if twin in taken}
            free = [name for name in characters.char_list if name not in forbidden]
            name = free[int(rng.integers(len(free)))]
        taken.add(name)
        drawn.append(name)
    return drawn


def env_settings(keys: Keys, game: str) -> Any:
    """Return the `EnvSettings` message that starts a game for one player."""
    height, width, channels = keys.frame_shape
    return messages().EnvSettings(
        game_id=game,
        frame_shape={"h": height, "w": width, "c": channels},
        step_ratio=keys.step_ratio,
        n_players=1,
        disable_keyboard=keys.diambra_settings.disable_keyboard,
        disable_joystick=keys.diambra_settings.disable_joystick,
        action_spaces=[ACTIONS[keys.action_space]],
    )


def episode_settings(keys: Keys, game: str, info: Any, rng: np.random.Generator) -> Any:
    """Return the `EpisodeSettings` message of a new episode.

    Settings that are null get random values. They are drawn in a fixed order, so that equal seeds give equal episodes.
    """
    settings = keys.diambra_settings
    kinds = messages()

    def draw_if_open(value: Any, choices: range) -> int:
        # A random value is drawn even if the user chose one, so that the other random values stay the same.
        draw = choices[int(rng.integers(len(choices)))]
        return draw if value is None else value

    seed = int(rng.integers(2**31 - 1))
    difficulty = draw_if_open(settings.difficulty, range(info.difficulty_bounds.min, info.difficulty_bounds.max + 1))
    tower = draw_if_open(settings.tower, TOWERS)
    role = draw_if_open(settings.role and ROLES[settings.role], range(P1, P2 + 1))
    dash, evade, bar = (draw_if_open(style, ULTIMATES) for style in settings.ultimate_style or (None, None, None))
    player = kinds.PlayerSettings(
        role=role,
        outfits=settings.outfits,
        super_art=draw_if_open(settings.super_art, SUPER_ARTS),
        fighting_style=draw_if_open(settings.fighting_style, STYLES_OF.get(game, STYLES)),
        ultimate_style={"dash": dash, "evade": evade, "bar": bar},
        speed_mode=draw_if_open(settings.speed_mode, SPEEDS),
        characters=draw_characters(settings, info.characters_info, rng),
    )
    return kinds.EpisodeSettings(
        random_seed=seed,
        difficulty=difficulty,
        continue_game=settings.continue_game,
        show_final=settings.show_final,
        tower=tower,
        player_settings=[player],
    )
