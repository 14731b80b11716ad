"""The text of `shepherd train -h`, and the table of keys in docs/configuration.md: both from the typed config.

python -m flows.cli.help docs/configuration.md      # writes the table anew
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.compose import compose
from flows.config.files import available, default_names, presets
from flows.config.search_path import BUILT_IN, config_folders
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import REQUIRED, Argument, arguments, at, defaults, spell
from rlcore.errors import UserError, nearest

WIDTH = 100
ROOT = "run"  # the section of keys without a group
BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
USAGE = """\
usage: shepherd train exp=PRESET [key=value ...]

Train an agent: from a config to a registered model. A preset chooses the algorithm, the environment
and their settings; every key can be set anew behind it. Files of a group are chosen by name
(env=mujoco logger=csv optim=adamw), single keys by their dotted place (algo.optimizer.lr=3e-4).

  shepherd train exp=ppo env.id=Acrobot-v1 env.num_envs=8 algo.total_steps=200000 seed=3
  shepherd train -h algo                 one section; also a word, as in: shepherd train -h schedule
  shepherd train -h exp=ppo_pendulum     with that preset's values in place of the defaults
"""


def train_help(words: Sequence[str] = ()) -> str:
    """What `shepherd train -h` prints.

    Args:
        words: what else was typed: overrides, whose values are then shown in place of the defaults, and words, which
            select the keys (a section as `algo`, the start of a key, or any part of it or of its description).

    Returns:
        Text of at most 100 columns.

    Raises:
        UserError: a wrong override, or a word that fits no key.
    """
    overrides = [word for word in words if "=" in word]
    filters = [word for word in words if "=" not in word]
    values: Mapping[str, Any] = {}
    algorithms = list(ALGORITHMS)
    if overrides:
        config, values = compose(overrides)
        algorithms = [config.algo.name]
    sections = _selected(_sections(algorithms), filters)
    head = [] if filters else [USAGE, _choices()]
    shown = f"Values after {' '.join(overrides)}." if overrides else "Values are defaults; a preset may change them."
    return "\n".join([*head, shown, "", *(_section(title, keys, values) for title, keys in sections.items())]).rstrip()


def table(algorithm: str = "ppo") -> str:
    """Every key in Markdown: key, default, what is allowed, what it means.

    Args:
        algorithm: whose keys stand under `algo`.

    Returns:
        One table for each section.
    """
    about = _parts()
    lines: list[str] = []
    for title, keys in _sections([algorithm]).items():
        lines += [f"### {title}", "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for argument in keys:
            value = _default(argument)
            default = "required" if value is REQUIRED else f"`{_text(value)}`"
            part = argument.key.rpartition(".")[0]
            meaning = _meaning(argument)
            meaning = f"{about[part]}: {meaning}" if part.count(".") and about.get(part) else meaning
            cells = (f"`{argument.key}`", default, argument.allowed, meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """A document with the table of keys between its two marks made anew.

    Args:
        text: the document.

    Returns:
        The same with today's table.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document must hold {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def _sections(algorithms: Iterable[str]) -> dict[str, list[Argument]]:
    """Arguments by group; keys of the root come last but are a section too."""
    sections: dict[str, list[Argument]] = {"algo": []}
    seen: set[str] = set()
    for name in algorithms:
        for argument in arguments(ALGORITHMS[name].Config, "algo."):
            if argument.key not in seen:
                seen.add(argument.key)
                sections["algo"].append(argument)
    root: list[Argument] = []
    for argument in arguments(RunConfig):
        group, dot, _ = argument.key.partition(".")
        if dot:
            sections.setdefault(group, []).append(argument)
        elif argument.key != "algo":
            root.append(argument)
    return sections | {ROOT: root}


def _selected(sections: dict[str, list[Argument]], filters: Sequence[str]) -> dict[str, list[Argument]]:
    if not filters:
        return sections
    chosen: dict[str, list[Argument]] = {}
    for title, keys in sections.items():
        fitting = [argument for argument in keys if all(_fits(word, title, sections, argument) for word in filters)]
        if fitting:
            chosen[title] = fitting
    if not chosen:
        known = [*sections, *(argument.key for keys in sections.values() for argument in keys)]
        hint = nearest(filters[0], known) or f"; sections: {', '.join(sections)}"
        raise UserError(f"-h {' '.join(filters)}: no key fits{hint}")
    return chosen


def _fits(word: str, title: str, titles: Collection[str], argument: Argument) -> bool:
    word = word.rstrip(".")
    if word in titles:
        return word == title
    return word in argument.key or word.lower() in argument.help.lower()


def _choices() -> str:
    """Presets with their first line of comment, and the files of the other groups."""
    lines = ["presets (exp=)"]
    for name in presets():
        lines += _hanging(f"  {name:<18}", _about("exp", name))
    lines += ["", "files of the groups"]
    for group in ("algo", "env", "optim", "logger"):
        lines.append(f"  {group + '=':<18}{', '.join(name for name in available(group) if name != 'default')}")
    return "\n".join([*lines, ""])


def _about(group: str, name: str) -> str:
    """The first sentence of a config file's comment."""
    for folder in config_folders():
        for file in (folder / group / f"{name}.yaml", folder / group / f"{name}.yml"):
            if file.is_file():
                lines = file.read_text(errors="replace").splitlines()
                words: list[str] = []
                for line in lines:
                    if line.startswith("#") and not line.startswith("# @package"):
                        words.append(line.lstrip("# "))
                    elif words:
                        break
                own = "" if folder == BUILT_IN else f" ({file})"
                return _first_sentence(" ".join(words)) + own
    return ""


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=(?<!al)\.) ", text, maxsplit=1)[0]


def _section(title: str, keys: Sequence[Argument], values: Mapping[str, Any]) -> str:
    about = _parts()
    lines, part = [title], title
    for argument in keys:
        if argument.key.rpartition(".")[0] not in (part, ""):
            part = argument.key.rpartition(".")[0]
            if part in about and part != title:
                lines += _hanging("  ", f"{part}: {about[part]}")
        lines.append(f"  {argument.key} = {_value(argument, values)}")
        lines += _hanging("      ", f"{_meaning(argument)}. Allowed: {argument.allowed}".lstrip(". "))
    return "\n".join([*lines, ""])


def _meaning(argument: Argument) -> str:
    return f"{argument.help} (no effect: {argument.unused})" if argument.unused else argument.help


def _parts() -> dict[str, str]:
    """Dotted names of groups within the config -> what they are for."""
    parts: dict[str, str] = {}

    def gather(cls: type, prefix: str) -> None:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            nested = hints[field.name]
            if isinstance(nested, type) and dataclasses.is_dataclass(nested):
                parts.setdefault(f"{prefix}{field.name}", field.metadata.get("help", ""))
                gather(nested, f"{prefix}{field.name}.")

    gather(RunConfig, "")
    for module in ALGORITHMS.values():
        gather(module.Config, "algo.")
    return parts


def _hanging(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False
    ) or [start.rstrip()]


def _value(argument: Argument, values: Mapping[str, Any]) -> str:
    """The value after the overrides, with the default behind it where they differ; else the default."""
    default = _default(argument)
    value = at(values, argument.key, REQUIRED)
    if value is REQUIRED or value == default:
        return _text(default)
    return f"{_text(value)}    (default {_text(default)})"


def _default(argument: Argument) -> Any:
    """The default of a key where it stands: a group may give its parts other defaults than their own class."""
    for module in ALGORITHMS.values():
        tree = defaults(RunConfig) | default_names() | {"algo": defaults(module.Config)}
        value = at(tree, argument.key, argument.default)
        if value is not argument.default:
            return REQUIRED if value == "???" else value
    return argument.default


def _text(value: Any) -> str:
    """A value as one would type it; `required` where the config must give one."""
    if value is REQUIRED:
        return "required"
    if value == "":
        return "''"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    return spell(value)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(rewritten(path.read_text()))
