"""Command-line overrides: choices of config files (`exp=ppo`) and settings of keys (`seed=3`).

Hydra's parser reads them, with two differences from Hydra. A key whose type is text accepts any text (`run_name=2024`).
An error is reported in one sentence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flows.config.mistakes import is_of_sheeprl, unknown_option
from flows.config.yaml_files import BUILT_IN, misnamed
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.stop import OLD_KEY, EarlyStopConfig
from rlcore.config.values import nearest, spell
from rlcore.errors import Mistakes, NotSupported, UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Groups whose files are placed in another group: `logger=csv` is short for `logger@metric.logger=csv`.
PACKAGES = {"logger": "metric.logger", "optim": "algo.optimizer"}
# Hydra's own keys that SheepRL's commands contain; they are ignored, because Hydra only composes the config.
IGNORED_HYDRA_KEYS = ("hydra.run.", "hydra.job.", "hydra.output_subdir")
BARE = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w./-]*", re.IGNORECASE)  # text that needs no quotes
SECOND = re.compile(r"\s+(?=[+~]*([\w./@-]+)=)")  # start of another `key=value` in the same argument


@dataclass(frozen=True)
class ParsedOverrides:
    """Command-line overrides after parsing.

    Attributes:
        choices: overrides that choose config files, in Hydra's syntax, such as "exp=ppo".
        settings: overrides that set a key to one value, such as `seed=3`, in the order of the command line.
        sweeps: overrides with several values, such as `seed=1,2` or `algo.gamma=interval(0.9,1)`.
        refused: groups for which an override chooses a config file that does not exist.
    """

    choices: list[str] = field(default_factory=list)
    settings: list[Override] = field(default_factory=list)
    sweeps: list[Override] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def refuse_sweeps(self) -> None:
        """Raise UserError if an override has several values (`seed=1,2`), because the config is for a single run."""
        mistakes = Mistakes()
        for sweep in self.sweeps:
            key, text = sweep.key_or_group, _text(sweep)
            as_list = "" if "(" in text else f"; write a list as {key}=[{text}], and text in quotes"
            mistakes.note(UserError(f"{key}={text}: several values, but a run needs a single one{as_list}"))
        mistakes.raise_collected()

    def refuse_choices(self, extends: bool = False) -> None:
        """Raise UserError if an override chooses a config file, which is not allowed for a run that already exists.

        If `extends` is True, the config is that of a new run that extends another run. The files in `PACKAGES` are then
        allowed. Other files can change keys on which the state of that run depends.
        """
        for choice in self.choices:
            if extends and choice.partition("@")[0] in PACKAGES:
                continue
            if extends:
                raise UserError(
                    f"{choice}: an extended run has the config of its source, in which only files of the groups "
                    f"{' and '.join(PACKAGES)} can be replaced; set single keys, as metric.log_every=1000"
                )
            raise UserError(
                f"{choice}: config files can be chosen only for a new run; for an existing run set single keys, "
                "as metric.log_every=1000"
            )


def parse(
    overrides: Sequence[str], groups: Mapping[str, Collection[str]], mistakes: Mistakes | None = None
) -> ParsedOverrides:
    """Parse overrides, each a `key=value` in Hydra's grammar.

    Args:
        overrides: the overrides.
        groups: group of config files -> names of its files.
        mistakes: collects the errors. An override is an error if it is invalid, unknown or repeated, and is then not
            part of the result. If None, the errors are raised.

    Returns:
        The parsed overrides.

    Raises:
        UserError: there are errors and `mistakes` is None.
    """
    typed, keys, collected = ParsedOverrides(), _known_keys(), Mistakes() if mistakes is None else mistakes
    seen: dict[str, str] = {}  # key or group -> override of it
    for line in overrides:
        with collected.catch():
            override = _read(line, groups, keys)
            key = override.key_or_group
            package = override.package or PACKAGES.get(key)
            place = f"{key}@{package}" if package else key
            if place in seen:
                raise UserError(f"{key} is given twice, as {seen[place]} and {line}; keep one")
            seen[place] = line
            if key.startswith(IGNORED_HYDRA_KEYS):
                continue
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
    if mistakes is None:
        collected.raise_collected()
    return typed


def override_text(key: str, value: Any) -> str:
    """Return the override that sets a key to a value, in Hydra's grammar."""
    return f"{key}={_spell(value)}"


def _spell(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_spell, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_spell(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str) and not BARE.fullmatch(value):
        return "'" + value.replace("'", r"\'") + "'"
    return spell(value)


def _known_keys() -> dict[str, bool]:
    """Return a dict with the dotted keys of a run's config, including the keys of all algorithms.

    The value of a key in the dict is True if the key's type is `str` or `str | None`.
    """
    keys = {key: text for key, text in _keys_of(RunConfig, "").items() if key != "algo"}
    keys |= _keys_of(EarlyStopConfig, f"{OLD_KEY}.")
    for module in ALGORITHMS.values():
        keys |= _keys_of(module.Config, "algo.")
    return keys


@functools.cache
def _keys_of(cls: type, prefix: str) -> dict[str, bool]:
    """Return each dotted key of a config dataclass -> True if the key's type is `str` or `str | None`."""
    return {argument.key: argument.type in (str, str | None) for argument in arguments(cls, prefix)}


def _read(line: str, groups: Mapping[str, Collection[str]], keys: Mapping[str, bool]) -> Override:
    """Parse one override with Hydra.

    If the type of the key is text, a value that Hydra parses as a number or a bool is kept as text.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(line)
    except (HydraException, ValueError) as error:
        override = _beyond_the_grammar(line, str(error), groups, keys)
    if not override.key_or_group:
        raise UserError(f"{line!r}: must have the form key=value, as exp=ppo or env.num_envs=8")
    if keys.get(override.key_or_group) and isinstance(override.value(), (bool, int, float)):
        return replace(override, _value=_text(override))
    return override


def _beyond_the_grammar(
    line: str, error: str, groups: Mapping[str, Collection[str]], keys: Mapping[str, bool]
) -> Override:
    """Parse an override that Hydra's grammar rejects, or raise UserError if it is invalid.

    Valid examples are text with `=` or brackets, and a key with a slash.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override, OverrideType, ValueType
    from hydra.errors import HydraException

    name, equals, text = line.partition("=")
    key, deletes = name.strip().lstrip("+~"), name.startswith("~")
    for second in SECOND.finditer(line):
        if second[1] in groups or second[1].partition(".")[0] in _tops(keys):
            both = f"{line[: second.start()]!r} and {line[second.end() :]!r}"
            quoted = f" (put a text with spaces in quotes: {key}='…')" if keys.get(key) else ""
            raise UserError(f"{line!r}: two settings in one argument; write them as two, {both}{quoted}")
    if key and not equals and not deletes:
        presets = [] if key in keys else [f"exp={name}" for name in groups.get("exp", ())]
        known = nearest(f"exp={key}", presets)
        raise UserError(f"{line!r}: no value; write {key}=VALUE{known}")
    try:  # Hydra does not accept metric.aggregator.metrics.Loss/value_loss as a key
        value = OverridesParser.create().parse_override(f"key={text}")
    except (HydraException, ValueError):
        if not keys.get(key):
            reason = " ".join(error.split("\n")[0].split())
            raise UserError(f"{line}: the value cannot be read ({reason}); put it in single quotes") from None
        value = Override(OverrideType.CHANGE, key, ValueType.ELEMENT, text)
    return replace(value, type=OverrideType.DEL if deletes else value.type, key_or_group=key, input_line=line)


def _check_key(override: Override, groups: Mapping[str, Collection[str]], keys: Mapping[str, bool]) -> None:
    """Raise UserError if the override's key belongs to no known group, or if the override has no value.

    Keys inside a known group are checked later, when the config is built.
    """
    key, typed = override.key_or_group, override.input_line
    if key.startswith(("hydra.", "hydra/")):
        raise UserError(
            f"{typed}: Hydra's own keys are not supported; add folders of config files with SHEPHERD_SEARCH_PATH, and "
            "set the run directory with run_dir"
        )
    top = key.partition(".")[0]
    if top not in _tops(keys):
        hint = nearest(key, [*_tops(keys), *groups], keys) or "; `shepherd train -h` lists every key"
        raise UserError(f"unknown key {key!r} (value {_text(override)!r}){hint}")
    for group, place in PACKAGES.items():
        if key == place and isinstance(override.value(), str):  # probably meant as the name of a file
            name, options = _text(override), groups[group]
            advice = f"type {group}={name}" if name in options else f"choose a file, as {group}={min(options)}"
            raise UserError(f"{typed}: this is a group of keys; {advice}")
    if override.is_delete() and not any(f"{known}.".startswith(f"{key}.") for known in keys):
        raise UserError(f"{typed}: there is no key {key!r} to reset to its default{nearest(key, keys)}")
    if not override.is_delete() and override._value == "":  # '' in quotes is empty text, which is allowed
        raise UserError(f"{typed}: no value given for {key}; write {key}=VALUE, or leave it out")


def _tops(keys: Collection[str]) -> dict[str, None]:
    """Return the first parts of dotted keys (`algo` for `algo.gamma`) without repetition, as the keys of a dict."""
    return dict.fromkeys(key.partition(".")[0] for key in keys)


def _text(override: Override) -> str:
    """Return the text after the `=` of an override."""
    return (override.input_line or "").partition("=")[2].strip()


def _choice(override: Override, place: str, options: Collection[str]) -> str:
    """Return the override that chooses a config file, in Hydra's syntax, such as "exp=ppo".

    Raises UserError if the group has no file of this name.
    """
    group, name = override.key_or_group, _text(override).removesuffix(".yaml").strip("'\"")
    if override.is_delete():
        raise UserError(f"{override.input_line}: a group cannot be removed; choose one of {', '.join(sorted(options))}")
    if name not in options:
        if file := misnamed(group, name):
            raise UserError(f"{group}={name}: {file} is not read; rename it to {file.with_suffix('.yaml').name}")
        kind = NotSupported if is_of_sheeprl(group, name) else UserError
        raise kind(unknown_option(group, name, options))
    # Hydra needs a + for a user's own group, because only the built-in groups are in the defaults list.
    return f"{'+' if override.is_add() and not (BUILT_IN / group).is_dir() else ''}{place}={name}"
