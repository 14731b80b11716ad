"""Messages of the engine's gRPC service `interface.EnvServer`, compatible with version 2.2 of DIAMBRA Arena.

This module builds the protobuf message classes from field numbers and types, which are all that the wire format uses.
DIAMBRA's generated classes are not used, because they need protobuf < 4, which conflicts with MLflow and TensorBoard.
Enumerations are encoded as integers, as in the wire format.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

# Each field is `type name number`; `type*` is repeated, `type -> type` is a map.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "Empty": (),
    "FrameShape": ("int32 h 1", "int32 w 2", "int32 c 3"),
    "UltimateStyle": ("int32 dash 1", "int32 evade 2", "int32 bar 3"),
    "PlayerSettings": (
        "int32 role 1",
        "string* characters 2",
        "int32 outfits 3",
        "int32 super_art 4",
        "int32 fighting_style 5",
        "UltimateStyle ultimate_style 6",
        "int32 speed_mode 7",
    ),
    "EpisodeSettings": (
        "int32 random_seed 1",
        "int32 difficulty 2",
        "double continue_game 3",
        "bool show_final 4",
        "int32 tower 5",
        "PlayerSettings* player_settings 6",
    ),
    "EnvSettings": (
        "string game_id 1",
        "FrameShape frame_shape 2",
        "int32 step_ratio 3",
        "int32 n_players 4",
        "bool disable_keyboard 5",
        "bool disable_joystick 6",
        "int32 rank 7",
        "int32* action_spaces 8",
        "EpisodeSettings episode_settings 9",
    ),
    "Button": ("string key 1", "string label 2"),
    "AvailableActions": (
        "int32 n_moves 1",
        "int32 n_attacks 2",
        "int32 n_attacks_no_comb 3",
        "Button* moves 4",
        "Button* attacks 5",
    ),
    "Bounds": ("int32 min 1", "int32 max 2"),
    "CharactersInfo": (
        "string* char_list 1",
        "string* char_forbidden_list 2",
        "string -> string char_homonymy_map 3",
        "int32 chars_per_round 4",
        "int32 chars_to_select 5",
        "string* partner_list 6",
    ),
    "RamStateInfo": ("int32 type 1", "int32 min 2", "int32 max 3"),
    "CategoryInfo": ("int32 -> RamStateInfo ram_states 1",),
    "EnvInitResponse": (
        "AvailableActions available_actions 1",
        "FrameShape frame_shape 2",
        "Bounds cumulative_reward_bounds 3",
        "CharactersInfo characters_info 4",
        "Bounds difficulty_bounds 5",
        "int32 -> CategoryInfo ram_states_categories 6",
    ),
    "Action": ("int32 move 1", "int32 attack 2"),
    "Actions": ("Action* actions 1",),
    "Category": ("int32 -> int32 ram_states 1",),
    "Observation": ("bytes frame 1", "int32 -> Category ram_states_categories 2"),
    "Info": ("int32 -> bool game_states 1",),
    "StepResetResponse": ("Observation observation 1", "int32 reward 2", "Info info 3"),
}
METHODS: Mapping[str, tuple[str, str]] = {  # name -> request and response messages
    "EnvInit": ("EnvSettings", "EnvInitResponse"),
    "Reset": ("EpisodeSettings", "StepResetResponse"),
    "Step": ("Actions", "StepResetResponse"),
    "Close": ("Empty", "Empty"),
}
SERVICE = "interface.EnvServer"

BINARY, DISCRETE, MULTI_DISCRETE, BOX = range(4)  # types of RAM states and of actions
ROUND_DONE, STAGE_DONE, GAME_DONE, EPISODE_DONE, ENV_DONE = range(5)  # game states
COMMON, P1, P2 = 1, 2, 3  # categories of RAM states; P1 and P2 are also the roles
_OF_A_PLAYER = """
    side wins character health super_bar super_count super_max_count super_type stun_bar stunned health_1 health_2
    active_character character_1 character_2 bar_status aggressor_bar weapon_bar power_bar weapon_fight weapon_lost
    rage_on rage_bar rage_used special_attacks bar_type character_3 partner partner_attacks
"""
RAM_STATES: Mapping[int, str] = {100: "stage", 101: "timer", **dict(enumerate(_OF_A_PLAYER.split(), start=200))}


@functools.cache
def messages() -> Any:
    """Return a namespace of the message classes; raise ImportError if protobuf is missing."""
    # Imported here, because the import takes 60 ms and the package is an optional dependency (pip extra `diambra`).
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="shepherd/diambra.proto", package="shepherd.diambra")
    file.syntax = "proto3"
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields:
            *kind, field_name, number = field.split()
            _add_field(message, "".join(kind), field_name, int(number), f".{file.package}.")
    # A separate pool avoids conflicts with DIAMBRA's package, which registers the same names in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = (f"{file.package}.{name}" for name in FIELDS)
    classes = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return SimpleNamespace(**dict(zip(FIELDS, classes, strict=True)))


def _add_field(message: Any, kind: str, name: str, number: int, package: str) -> None:
    """Add one field to the description of a message."""
    key, is_map, value = kind.partition("->")
    if is_map:  # encoded as a repeated message with key and value
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, key, "key", 1, package)
        _add_field(entry, value, "value", 2, package)
        kind = f"{message.name}.{entry.name}*"
    single = kind.removesuffix("*")
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    if single in ("int32", "double", "bool", "string", "bytes"):
        field.type = getattr(field, f"TYPE_{single.upper()}")
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, package + single
