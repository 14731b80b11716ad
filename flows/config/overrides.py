"""Words that a user types behind `shepherd train`: choices of config files (`exp=ppo`) and settings of keys (`seed=3`).

Hydra's own parser reads them all. Two things are ours: a key that takes text takes any text (`run_name=2024`), and a
mistake is one sentence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flows.config.mistakes import unknown_option
from flows.config.search_path import BUILT_IN
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.values import nearest
from rlcore.errors import Mistakes, UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Groups whose file lands in another group: `logger=csv` is short for `logger@metric.logger=csv`.
PACKAGES = {"logger": "metric.logger", "optim": "algo.optimizer"}
# Hydra's own keys that SheepRL's commands carry; Hydra only composes here, so they have nothing to act on.
IGNORED_HYDRA_KEYS = ("hydra.run.", "hydra.job.", "hydra.output_subdir")
SECOND = re.compile(r"\s+(?=[+~]*([\w./@-]+)=)")  # where another `key=value` begins in the same entry


@dataclass(frozen=True)
class ParsedOverrides:
    """A command line taken apart.

    Attributes:
        choices: config files, in Hydra's spelling.
        settings: keys with one value each, in order.
        sweeps: keys or groups with several values, as `seed=1,2` or `algo.gamma=interval(0.9,1)`.
        refused: groups of which no such file is there.
    """

    choices: list[str] = field(default_factory=list)
    settings: list[Override] = field(default_factory=list)
    sweeps: list[Override] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def refuse_sweeps(self) -> None:
        """Refuse several values where one run is meant."""
        mistakes = Mistakes()
        for sweep in self.sweeps:
            key, text = sweep.key_or_group, _text(sweep)
            as_list = "" if "(" in text else f"; a list is written {key}=[{text}], text in quotes"
            mistakes.note(UserError(f"{key}={text}: several values, and a run takes one{as_list}"))
        mistakes.raise_collected()

    def refuse_choices(self) -> None:
        """Refuse files where a run exists."""
        for choice in self.choices:
            raise UserError(
                f"{choice}: files are chosen when a run is made; for a run that exists give single keys, "
                "as metric.log_every=1000"
            )


def parse(
    overrides: Sequence[str], groups: Mapping[str, Collection[str]], mistakes: Mistakes | None = None
) -> ParsedOverrides:
    """Take overrides apart, one `key=value` each in Hydra's grammar; `groups` are those of the config files.

    An override that cannot be read, names no file or key there is, or comes twice is left out and added to `mistakes`;
    without such, a `UserError` at the end.
    """
    typed, keys, found = ParsedOverrides(), _known_keys(), Mistakes() if mistakes is None else mistakes
    seen: dict[str, str] = {}
    for line in overrides:
        with found.catch():
            _take(line, typed, seen, groups, keys)
    if mistakes is None:
        found.raise_collected()
    return typed


def _take(
    line: str,
    typed: ParsedOverrides,
    seen: dict[str, str],
    groups: Mapping[str, Collection[str]],
    keys: Mapping[str, bool],
) -> None:
    """Add one override to what was typed; `seen` is what was typed for each place so far."""
    override = _read(line, groups, keys)
    key = override.key_or_group
    package = override.package or PACKAGES.get(key)
    place = f"{key}@{package}" if package else key
    if place in seen:
        raise UserError(f"{key} is given twice, as {seen[place]} and {line}; keep one")
    seen[place] = line
    if key.startswith(IGNORED_HYDRA_KEYS):
        return
    is_group = key in groups and key not in keys
    if not is_group:
        _check_key(override, groups, keys)
    if override.is_sweep_override():
        typed.sweeps.append(override)
    elif is_group:
        typed.refused.add(key)
        typed.choices.append(_choice(override, place, groups[key]))
        typed.refused.remove(key)
    else:
        typed.settings.append(override)


def _known_keys() -> dict[str, bool]:
    """Every dotted key of the config, of all algorithms -> whether it takes text and nothing else (but null)."""
    keys = {key: text for key, text in _keys_of(RunConfig, "").items() if key != "algo"}
    for module in ALGORITHMS.values():
        keys |= _keys_of(module.Config, "algo.")
    return keys


@functools.cache
def _keys_of(cls: type, prefix: str) -> dict[str, bool]:
    """Every dotted key of a config dataclass, as `_known_keys` gives them."""
    return {argument.key: argument.type in (str, str | None) for argument in arguments(cls, prefix)}


def _read(line: str, groups: Mapping[str, Collection[str]], keys: Mapping[str, bool]) -> Override:
    """One override, read by Hydra; a number typed for a key that takes text is text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(line)
    except (HydraException, ValueError) as error:
        override = _beyond_the_grammar(line, str(error), groups, keys)
    if not override.key_or_group:
        raise UserError(f"{line!r}: cannot be read; write key=value, as exp=ppo or env.num_envs=8")
    if keys.get(override.key_or_group) and isinstance(override.value(), (bool, int, float)):
        return replace(override, _value=_text(override))
    return override


def _beyond_the_grammar(
    line: str, error: str, groups: Mapping[str, Collection[str]], keys: Mapping[str, bool]
) -> Override:
    """An override that Hydra's grammar does not take whole: text with `=` or brackets, or a key with a slash."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override, OverrideType, ValueType
    from hydra.errors import HydraException

    name, equals, text = line.partition("=")
    key, deletes = name.strip().lstrip("+~"), name.startswith("~")
    for second in SECOND.finditer(line):
        if second[1] in groups or second[1].partition(".")[0] in _tops(keys):
            both = f"{line[: second.start()]!r} and {line[second.end() :]!r}"
            quoted = f" (one text goes in quotes: {key}='…')" if keys.get(key) else ""
            raise UserError(f"{line!r}: two settings in one entry; write them as two, {both}{quoted}")
    if key and not equals and not deletes:
        presets = [] if key in keys else [f"exp={name}" for name in groups.get("exp", ())]
        known = nearest(f"exp={key}", presets)
        raise UserError(f"{line!r}: no value; write {key}=VALUE{known}")
    try:  # metric.aggregator.metrics.Loss/value_loss is no key to Hydra
        value = OverridesParser.create().parse_override(f"key={text}")
    except (HydraException, ValueError):
        if not keys.get(key):
            reason = " ".join(error.split("\n")[0].split())
            raise UserError(f"{line}: the value cannot be read ({reason}); put it in single quotes") from None
        value = Override(OverrideType.CHANGE, key, ValueType.ELEMENT, text)
    return replace(value, type=OverrideType.DEL if deletes else value.type, key_or_group=key, input_line=line)


def _check_key(override: Override, groups: Mapping[str, Collection[str]], keys: Mapping[str, bool]) -> None:
    """Refuse a key of no group, and one without a value; whether its group has it is seen in the whole config."""
    key, typed = override.key_or_group, override.input_line
    if key.startswith(("hydra.", "hydra/")):
        raise UserError(
            f"{typed}: Hydra only composes the config here; folders of config files are added "
            "with SHEPHERD_SEARCH_PATH, and the run's folder is run_dir"
        )
    top = key.partition(".")[0]
    if top not in _tops(keys):
        hint = nearest(key, [*_tops(keys), *groups], keys) or "; `shepherd train -h` lists every key"
        raise UserError(f"unknown key {key!r} (value {_text(override)!r}){hint}")
    for group, place in PACKAGES.items():
        if key == place and isinstance(override.value(), str):
            raise UserError(
                f"{typed}: this is a group of keys; {_chosen_by_file(group, _text(override), groups[group])}"
            )
    if override.is_delete() and not any(f"{known}.".startswith(f"{key}.") for known in keys):
        raise UserError(f"{typed}: there is no key {key!r} to take back to its default{nearest(key, keys)}")
    if not override.is_delete() and override._value == "":  # and not '', which is empty text
        raise UserError(f"{typed}: no value given for {key}; write {key}=VALUE, or leave it out")


def _chosen_by_file(group: str, name: str, options: Collection[str]) -> str:
    """The sentence part that tells how a file is chosen whose name was typed for the keys that it holds."""
    return f"type {group}={name}" if name in options else f"choose a file, as {group}={min(options)}"


def _tops(keys: Collection[str]) -> dict[str, None]:
    """The first words of all keys, in order."""
    return dict.fromkeys(key.partition(".")[0] for key in keys)


def _text(override: Override) -> str:
    """Text that was typed behind the `=`."""
    return (override.input_line or "").partition("=")[2].strip()


def _choice(override: Override, place: str, options: Collection[str]) -> str:
    """A choice of a file in Hydra's spelling."""
    group, name = override.key_or_group, _text(override).removesuffix(".yaml").strip("'\"")
    if override.is_delete():
        raise UserError(
            f"{override.input_line}: a group cannot be taken away; choose one of {', '.join(sorted(options))}"
        )
    if name not in options:
        raise UserError(unknown_option(group, name, options))
    # A group of the user's own is appended with +, as Hydra has it; the built-in ones are in the defaults list.
    return f"{'+' if override.is_add() and not (BUILT_IN / group).is_dir() else ''}{place}={name}"
