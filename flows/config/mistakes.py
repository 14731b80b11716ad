"""Messages for files and keys that only SheepRL and rl8 have, and for errors of Hydra and OmegaConf.

A message names the file or key, the value, and what to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flows.config.sheeprl_names import NAMES
from rlcore.algorithms import ABSENT, ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import REQUIRED, arguments
from rlcore.config.values import at, first_leaf, nearest, spell
from rlcore.errors import Mistakes, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

MANY = 20  # if a group has more files, a message refers to the command that lists them
LISTED = {"exp": "agents", "algo": "agents", "env": "envs"}
# Required keys without a default.
NEEDED = {"algo.name": "choose a preset, as exp=ppo", "env.id": "give any Gymnasium id, as env.id=CartPole-v1"}

# Key of SheepRL or rl8 -> the algorithms of SheepRL that have it, or the message if no algorithm here has it.
ABSENT_KEYS: dict[str, list[str] | str] = {
    **{key: entry["algorithms"] for entry in NAMES["keys_of_algorithms"] for key in entry["keys"].split()},
    **NAMES["other_keys"],
}


def unknown_option(group: str, name: str, options: Collection[str]) -> str:
    """Return the error message for `group=name` if the group of config files has no file of this name.

    The message suggests the file with the most similar name. If no name is similar, it lists the files or names the
    command that lists them.
    """
    choose = f"; choose one of {', '.join(sorted(set(options) - {'default'}) or options)}"
    if group in LISTED and len(options) > MANY:
        choose = f"; `shepherd {LISTED[group]}` lists the available ones"
    if name in ("", "???"):
        return f"{group}={name}: no name given{choose}"
    if is_of_sheeprl(group, name):
        return f"{group}={name}: SheepRL's {name} is not supported yet{choose}"
    return f"{group}={name}: no such file in the group {group}{nearest(name, options) or choose}"


def is_of_sheeprl(group: str, name: str) -> bool:
    """Return True if SheepRL has a config file of this name that this project does not support yet."""
    algorithms = ABSENT if group in ("exp", "algo") else ()
    return name.startswith((*algorithms, *NAMES["not_supported"]["files"].get(group, ())))


def refuse_absent_keys(tree: dict[str, Any]) -> None:
    """Remove the keys of SheepRL and rl8 that this project does not support from a config, and report them as errors.

    Args:
        tree: the config as nested dicts without interpolations; modified in place.

    Raises:
        UserError: the config had such keys; the message names all of them.
    """
    name, mistakes = at(tree, "algo.name"), Mistakes()
    if not isinstance(name, str) or name not in ALGORITHMS:
        return  # reported when the config is built
    of_algorithm = [argument.key for argument in arguments(ALGORITHMS[name].Config, "algo.")]
    known = [*of_algorithm, *(argument.key for argument in arguments(RunConfig))]
    for key, reason in ABSENT_KEYS.items():
        leaf, value = first_leaf(key, at(tree, key, REQUIRED))
        in_mapping = any(leaf.startswith(f"{own}.") for own in of_algorithm)  # such as algo.loss_scales
        if value is REQUIRED or in_mapping or any(f"{own}.".startswith(f"{leaf}.") for own in known):
            continue
        if not isinstance(reason, str):
            supported = any(other.startswith(tuple(reason)) for other in ALGORITHMS)
            of = f"{', '.join(reason)}{'' if supported else ', not supported yet'}"
            reason = f"SheepRL's key of {of}; {name} has no such key"
        mistakes.note(UserError(f"{leaf}={spell(value)}: {reason}"))
        group, _, last = key.rpartition(".")
        del at(tree, group)[last]
    mistakes.raise_collected()


def of_files(error: Exception, choices: str, groups: Mapping[str, Collection[str]]) -> str:
    """Return the error message for config files that Hydra cannot compose.

    Args:
        error: the exception that Hydra or OmegaConf raised.
        choices: the arguments that choose the config files, such as `exp=ppo env=atari`.
        groups: group of config files -> names of its files.

    Returns:
        The message.
    """
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OmegaConfBaseException):
        return f"{choices}: {one_line(error)}"
    if not isinstance(error, HydraException):
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            return f"{choices}: a config file cannot be read ({one_line(error)})"
        return f"{mark.name}:{mark.line + 1}: invalid YAML ({getattr(error, 'problem', None)})"
    text = one_line(error if str(error) else error.__cause__ or error)
    source = re.match(r"In '([^']+)'", text)
    # The defaults list of the root config consists of the choices.
    place = f"in {source[1]}.yaml, " if source and source[1] != "config" else f"{choices}: "
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = str(error.missing_cfg_file).strip("/")
        group, _, name = missing.partition("/")
        if name and group in groups:
            return place + unknown_option(group, name.removesuffix(".yaml"), groups[group])
        group = missing.rpartition("/")[0] or missing
        return f"{place}{group}: no such group of config files{nearest(group, groups)}"
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        group = override[1].partition("@")[0]
        known = (
            "no file of this group has been chosen before, so it cannot be overridden"
            if group in groups
            else "no such group"
        )
        return f"{place}override {override[1]}: {known}{nearest(group, [other for other in groups if other != group])}"
    return place + (text[source.end() :].lstrip(": ") if source else text)


def of_interpolation(error: Exception, config: DictConfig) -> str:
    """Return the error message for a `${...}` that cannot be resolved or that refers to a key without a value."""
    from omegaconf import OmegaConf

    key = str(getattr(error, "full_key", None) or "")
    known = dict(_leaves(OmegaConf.to_container(config, resolve=False)))
    typed = f"{key}={spell(known[key])}" if key in known else key
    text = one_line(error)
    if "Recursive interpolation" in text:
        return (
            f"{typed}: this interpolation refers to itself, maybe through other keys; set one of them to a plain value"
        )
    if missing := re.search(r"Interpolation key '([^']+)' not found", text):
        return f"{typed}: there is no key {missing[1]!r}{nearest(missing[1], [k for k in known if k != key])}"
    if unset := re.search(r"Environment variable '([^']+)' not found", text):
        return f"{typed}: the environment variable {unset[1]} is not set; set it, or give {key} a value"
    if needed := re.search(r"Missing mandatory value: (\S+)", text):
        fix = NEEDED.get(needed[1])
        return f"{needed[1]} is required: {fix}" if fix else f"{typed}: {needed[1]} has no value; set {needed[1]}"
    if resolver := re.search(r"Unsupported interpolation type (\S+)", text):
        return f"{typed}: there is no function {resolver[1]} for interpolations; allowed: now, oc.env, oc.select"
    return f"{typed}: {text}"


def one_line(error: object) -> str:
    """Return the message of an exception in one line, without the details that OmegaConf and Hydra append."""
    text = re.split(r"\n\s*(?:full_key|object_type|reference_type|See )", str(error))[0]
    return " ".join(text.split()) or type(error).__name__


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of nested dicts with its value, including keys whose value is a dict."""
    for key, value in tree.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
