"""What a user types behind `shepherd train`: choices of group files (`exp=ppo`) and settings of keys (`seed=3`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.config.search_path import BUILT_IN
from rlcore.errors import UserError, nearest

# Groups whose file lands in another group: `logger=csv` is short for `logger@metric.logger=csv`.
PACKAGES = {"logger": "metric.logger", "optim": "algo.optimizer"}
# Hydra's own keys that SheepRL's commands carry; Hydra only composes here, so they have nothing to act on.
IGNORED_HYDRA_KEYS = ("hydra.run.", "hydra.job.", "hydra.output_subdir")
# SheepRL's files that have no counterpart yet, by their whole name or its first word.
_LATER = frozenset(
    ("a2c", "sac", "droq", "dreamer", "p2e", "ppo_atari", "ppo_recurrent", "ppo_super_mario_bros", "ppo_decoupled")
)
NOT_YET: dict[str, frozenset[str]] = {
    "exp": _LATER,
    "algo": _LATER,
    "env": frozenset(("atari", "crafter", "diambra", "dmc", "dummy", "minecraft", "minedojo", "minerl", "super")),
    "fabric": frozenset(("ddp-cpu", "ddp-cuda")),
}
SPLIT = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=@]+)(?:@(?P<package>[^=]*))?(?:=(?P<text>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """One key of the config and its value; `delete` takes it back to the built-in default."""

    key: str
    value: Any
    delete: bool = False


@dataclass(frozen=True)
class Typed:
    """A command line taken apart.

    Attributes:
        choices: group files, in Hydra's own spelling.
        settings: keys and values, in order.
    """

    choices: tuple[str, ...]
    settings: tuple[Setting, ...]


def parse(overrides: Sequence[str], options: Mapping[str, Collection[str]], keys: Mapping[str, bool]) -> Typed:
    """Take a command line's overrides apart.

    Args:
        overrides: as typed, one `key=value` each, in Hydra's grammar.
        options: group -> names of its files.
        keys: known dotted key -> whether its value is text (then `run_name=2024` is text too).

    Returns:
        Choices and settings.

    Raises:
        UserError: an override that cannot be read, names no group file, or comes twice.
    """
    choices: list[str] = []
    settings: list[Setting] = []
    seen: dict[str, str] = {}
    top = {key.partition(".")[0] for key in keys}
    for override in overrides:
        match = SPLIT.fullmatch(override)
        if match is None:
            raise UserError(f"{override!r}: cannot be read; write key=value, as exp=ppo or env.num_envs=8")
        prefix, key, package, text = match["prefix"] or "", match["key"].strip(), match["package"], match["text"]
        if text is None and prefix != "~":
            known = nearest(f"exp={key}", [f"exp={name}" for name in options.get("exp", ())])
            raise UserError(f"{override!r}: no value; write {key}=VALUE{known}")
        place = f"{key}@{package}" if package else f"{key}@{PACKAGES[key]}" if key in PACKAGES else key
        if place in seen:
            raise UserError(f"{key} is given twice, as {seen[place]} and {override}; keep one")
        seen[place] = override
        if key.startswith(IGNORED_HYDRA_KEYS):
            continue
        if key.startswith(("hydra.", "hydra/")):
            raise UserError(
                f"{override}: Hydra only composes the config here; folders of config files are added "
                "with SHEPHERD_SEARCH_PATH, and the run's folder is run_dir"
            )
        if key in options and key not in keys:
            choices.append(_choice(override, prefix, key, place, text, options[key]))
            continue
        _check_top(key, text, top, options)
        settings.append(_setting(override, prefix, key, text, keys))
    return Typed(tuple(choices), tuple(settings))


def _choice(override: str, prefix: str, group: str, place: str, text: str | None, options: Collection[str]) -> str:
    """A group override in Hydra's spelling, its option checked."""
    if prefix == "~" or text is None:
        raise UserError(f"{override}: a group cannot be taken away; choose one of {', '.join(sorted(options))}")
    name = text.strip().removesuffix(".yaml").strip("'\"")
    if name not in options:
        raise UserError(not_an_option(group, name, options))
    # A group of the user's own is appended with +, as Hydra has it; the built-in ones are in the defaults list.
    return f"{'+' if prefix == '+' and not (BUILT_IN / group).is_dir() else ''}{place}={name}"


def not_an_option(group: str, name: str, options: Collection[str]) -> str:
    """The sentence for a group file that does not exist.

    Args:
        group: the group, as `exp`.
        name: what was asked for.
        options: names of the group's files.

    Returns:
        One sentence with the nearest match, or all options.
    """
    if name in ("", "???"):
        return f"{group}={name}: no name given; choose one of {', '.join(sorted(options))}"
    hint = nearest(name, options) or f"; choose one of {', '.join(sorted(options))}"
    if {name, name.partition("_")[0]} & NOT_YET.get(group, frozenset()):
        return f"{group}={name}: SheepRL's {name} is not there yet; choose one of {', '.join(sorted(options))}"
    return f"{group}={name}: no such file in the group {group}{hint}"


def _check_top(key: str, text: str | None, top: Collection[str], options: Mapping[str, Collection[str]]) -> None:
    first = key.partition(".")[0]
    if first in top:
        return
    hint = nearest(first, [*top, *options]) or "; `shepherd train -h` lists every key"
    raise UserError(f"unknown key {key!r} (value {text!r}){hint}")


def _setting(override: str, prefix: str, key: str, text: str | None, keys: Mapping[str, bool]) -> Setting:
    if prefix == "~":
        if key not in keys and not any(known.startswith(f"{key}.") for known in keys):
            raise UserError(f"{override}: there is no key {key!r} to take back to its default{nearest(key, keys)}")
        return Setting(key, None, delete=True)
    assert text is not None
    if not text.strip():
        empty = f", or {key}='' for empty text" if keys.get(key) else ""
        raise UserError(f"{override}: no value given for {key}; write {key}=VALUE{empty}")
    return Setting(key, value_of(key, text, textual=keys.get(key, False)))


def value_of(key: str, text: str, textual: bool = False) -> Any:
    """The value a user typed, in Hydra's grammar.

    Args:
        key: its key, for messages.
        text: what stands behind the `=`.
        textual: the key takes text, so that `run_name=2024` and `run_dir=/tmp/a=b` are text.

    Returns:
        A plain value; interpolations stay as text.

    Raises:
        UserError: the text is not in the grammar, or is a sweep.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={text}")
        sweep, value = parsed.is_sweep_override(), None if parsed.is_sweep_override() else parsed.value()
    except (HydraException, ValueError) as error:
        if textual:
            return text
        reason = " ".join(str(error).split("\n")[0].split())
        raise UserError(f"{key}={text}: the value cannot be read ({reason}); put it in single quotes") from None
    if sweep:
        raise UserError(
            f"{key}={text}: several values, and a run takes one; a list is written {key}=[{text}], text in quotes"
        )
    if textual and isinstance(value, (bool, int, float)):
        return text.strip()
    return value


def refuse_choices(typed: Typed) -> None:
    """Refuse group choices where only settings make sense (a run that exists).

    Args:
        typed: the command line.

    Raises:
        UserError: names the choice.
    """
    if typed.choices:
        raise UserError(
            f"{typed.choices[0]}: files are chosen when a run is made; for a run that exists give single keys, "
            "as metric.log_every=1000"
        )
