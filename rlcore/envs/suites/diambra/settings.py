"""Keys of `env.wrapper` for DIAMBRA's games, by SheepRL's and DIAMBRA's names, and the episode that they ask for.

What DIAMBRA draws at random (a role, a character, …) is drawn from the environment's own generator, anew for every
episode.
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
PREFIXES = ("diambra.arena.Roles.", "diambra.arena.SpaceTypes.")  # as files for SheepRL 0.5 write these names
TOWERS, SUPER_ARTS, STYLES, ULTIMATES, SPEEDS = range(1, 5), range(1, 4), range(1, 3), range(1, 3), range(1, 3)
STYLES_OF = {"kof98umh": range(1, 4)}
LARGEST_FRAME, LARGEST_STACK = 512, 48


@dataclass(frozen=True)
class GameKeys:
    """Settings by which the engine plays: `diambra_settings`. A null is drawn for every episode."""

    role: str | None = arg(None, "the player's side", choices=("P1", "P2", None))
    step_ratio: int = arg(6, "frames of the game for every action", low=1, high=6)
    difficulty: int | None = arg(None, "of the opponent; the game says which there are", low=1)
    continue_game: float = arg(0.0, "probability of a continue after a lost game; below 0: how many of them", high=1)
    show_final: bool = arg(False, "the game's final animation is shown")
    tower: int | None = arg(3, "Ultimate Mortal Kombat 3: tower to climb", choices=(*TOWERS, None))
    characters: str | tuple[str | None, ...] | None = arg(None, "a name, or as many as the game selects")
    outfits: int = arg(1, "as many outfits as this may be worn", low=1)
    super_art: int | None = arg(None, "Street Fighter III", choices=(*SUPER_ARTS, None))
    fighting_style: int | None = arg(None, "The King of Fighters '98", low=1, high=3)
    ultimate_style: tuple[int, int, int] | None = arg(
        None, "The King of Fighters '98: dash, evade, bar", low=ULTIMATES[0], high=ULTIMATES[-1]
    )
    speed_mode: int | None = arg(None, "Marvel vs. Capcom, X-Men vs. Street Fighter", choices=(*SPEEDS, None))
    disable_keyboard: bool = arg(True, "nobody plays along by keyboard")
    disable_joystick: bool = arg(True, "nobody plays along by joystick")
    grpc_timeout: int = arg(60, "seconds in which the engine must have started the game", low=1, high=3600)
    splash_screen: bool = arg(False, unused="there is no window to show it in")
    frame_shape: Any = arg(None, unused="env.screen_size and env.grayscale decide it")
    n_players: Any = arg(None, unused="one agent plays against the game")
    seed: Any = arg(None, unused="the run's seed decides it")
    rank: Any = arg(None, unused="every environment takes an engine that is free")
    env_address: Any = arg(None, unused="DIAMBRA_ENVS has the addresses")
    render_mode: Any = arg(None, unused="films are recorded from frames")
    game_id: Any = arg(None, unused="env.id names the game")


@dataclass(frozen=True)
class WrapperKeys:
    """Changes of actions, observations and rewards: `diambra_wrappers`."""

    no_op_max: int = arg(0, "an episode begins with so many no-ops at most, one at least", low=0, high=12)
    normalize_reward: bool = arg(False, "rewards in units of normalization_factor x full health")
    normalization_factor: float = arg(0.5, "see normalize_reward", above=0)
    clip_reward: bool = arg(False, "rewards are their sign")
    no_attack_buttons_combinations: bool = arg(False, "attacks are single buttons")
    add_last_action: bool = arg(False, "key `action`: the last action")
    stack_actions: int = arg(1, "so many of the last actions, oldest first", low=1, high=LARGEST_STACK)
    scale: bool = arg(False, "numbers between 0 and 1, choices one-hot")
    exclude_image_scaling: bool = arg(False, "frames stay bytes when scale is set")
    process_discrete_binary: bool = arg(False, "choices between two are one-hot too when scale is set")
    role_relative: bool = arg(False, "keys own_… and opp_… in place of P1_… and P2_…")
    filter_keys: tuple[str, ...] = arg([], "the keys that are left beside frame; none: all")
    wrappers: tuple[Any, ...] = arg([], "classes cannot be named in a config")
    repeat_action: Any = arg(None, unused="env.action_repeat decides it")
    flatten: Any = arg(None, unused="observations are always flat")
    frame_shape: Any = arg(None, unused="env.screen_size and env.grayscale decide it")
    stack_frames: Any = arg(None, unused="env.frame_stack decides it")
    dilation: Any = arg(None, unused="env.frame_stack_dilation decides it")

    def check(self, prefix: str) -> None:
        """Refuse what cannot go together."""
        mistakes = Mistakes()
        if self.stack_actions > 1 and not self.add_last_action:
            mistakes.note(
                UserError(f"{prefix}stack_actions={self.stack_actions}: needs {prefix}add_last_action=true to be seen")
            )
        if self.wrappers:
            mistakes.note(
                UserError(
                    f"{prefix}wrappers={spell(list(self.wrappers))}: no class can be named in a config; leave it out"
                )
            )
        mistakes.tell()


@dataclass(frozen=True)
class Keys:
    """All keys of `env.wrapper`."""

    action_space: str = arg("DISCRETE", "moves or attacks; or a move and an attack", choices=tuple(ACTIONS))
    screen_size: int | tuple[int, int] | None = arg(64, "pixels; null = the game's own", low=1, high=LARGEST_FRAME)
    grayscale: bool = arg(False, "frames of one channel")
    repeat_action: int = arg(1, "how many times an action is taken; step_ratio is 1 then", low=1, high=12)
    increase_performance: bool = arg(True, "the engine makes frames of screen_size and grayscale; else the run does")
    diambra_settings: GameKeys = arg(GameKeys(), "how the engine plays")
    diambra_wrappers: WrapperKeys = arg(WrapperKeys(), "what is done to actions, observations and rewards")
    rank: Any = arg(None, unused="every environment takes an engine that is free")
    log_level: Any = arg(None, unused="the run has a log")

    @property
    def step_ratio(self) -> int:
        """Frames of the game for every action that the engine is sent."""
        return 1 if self.repeat_action > 1 else self.diambra_settings.step_ratio

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Height, width and channels that the engine is asked for; 0 = the game's own."""
        if not self.increase_performance:
            return 0, 0, 0
        size = self.screen_size or 0
        height, width = (size, size) if isinstance(size, int) else size
        return height, width, int(self.grayscale)


def read_keys(wrapper: Mapping[str, Any]) -> Keys:
    """`env.wrapper` as keys; a UserError with all that is wrong in it."""
    plain = {key: _short(value) for key, value in wrapper.items()}
    settings = plain.get("diambra_settings")
    if isinstance(settings, Mapping):
        plain["diambra_settings"] = {key: _short(value) for key, value in settings.items()}
    for group in ("diambra_settings", "diambra_wrappers"):
        if plain.get(group, "") is None:
            del plain[group]
    return build(Keys, plain, "env.wrapper.")


def _short(value: Any) -> Any:
    """`diambra.arena.Roles.P1` as `P1`."""
    for prefix in PREFIXES:
        if isinstance(value, str) and value.startswith(prefix):
            return value.removeprefix(prefix)
    return value


def check_choices(settings: Mapping[str, Any], game: str, outfits: int) -> None:
    """Refuse, in one UserError, what a game is known not to have without an engine: outfits and fighting styles.

    `settings` are `diambra_settings` as typed; values that are no numbers at all are told by `read_keys`.
    """
    mistakes, most = Mistakes(), {"outfits": outfits, "fighting_style": STYLES_OF.get(game, STYLES)[-1]}
    for key, high in most.items():
        value = settings.get(key)
        if isinstance(value, int) and value > high:
            place = f"env.wrapper.diambra_settings.{key}"
            mistakes.note(UserError(f"{place}={value}: {game} has 1 to {high}"))
    mistakes.tell()


def check_game(keys: Keys, game: str, outfits: int, info: Any) -> None:
    """Refuse, in one UserError, what a game does not have; `info` is the engine's `EnvInitResponse`."""
    mistakes, settings, place = Mistakes(), keys.diambra_settings, "env.wrapper.diambra_settings."
    low, high, characters = info.difficulty_bounds.min, info.difficulty_bounds.max, info.characters_info
    if settings.difficulty is not None and not low <= settings.difficulty <= high:
        mistakes.note(UserError(f"{place}difficulty={settings.difficulty}: {game} has {low} to {high}, or null"))
    with mistakes.catch():
        check_choices({key: getattr(settings, key) for key in ("outfits", "fighting_style")}, game, outfits)
    for name in named_characters(settings):
        if name is not None and name not in characters.char_list:
            known = sorted(characters.char_list)
            hint = nearest(name, known) or f"; {game} has {', '.join(known)}"
            mistakes.note(UserError(f"{place}characters={name}: no character of {game}{hint}"))
    mistakes.tell()


def named_characters(settings: GameKeys) -> tuple[str | None, ...]:
    """The characters that the user names, None where one is to be drawn."""
    named = settings.characters
    return (named,) if isinstance(named, str) else named or ()


def draw_characters(settings: GameKeys, characters: Any, rng: np.random.Generator) -> list[str]:
    """As many characters as a game selects: those named, and others drawn, no two of which are one person."""
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
    """The `EnvSettings` message by which an engine starts a game for one player."""
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
    """The `EpisodeSettings` message of a new episode: what the keys leave open is drawn, always in the same order."""
    settings = keys.diambra_settings
    kinds = messages()

    def draw_if_open(value: Any, choices: range) -> int:
        draw = choices[int(rng.integers(len(choices)))]  # also where it is not needed: the others stay as they are
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
