"""The text of `shepherd train -h`, and the table of keys in docs/configuration.md: both from the typed config.

python -m flows.cli.help docs/configuration.md      # writes the table anew
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from flows.config.compose import compose
from flows.config.files import available, default_names, presets
from flows.config.search_path import BUILT_IN, config_folders
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import REQUIRED, Argument, arguments, at, defaults, nearest, spell
from rlcore.errors import UserError

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
    """What `shepherd train -h` prints, at most 100 columns wide.

    Overrides among the words have the values that come of them shown beside the defaults; other words select keys: a
    section as `algo`, the start of a key, or any part of it or of its description. A word that fits no key raises
    UserError.
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
    """Every key in Markdown, a table for each section: key, default, what is allowed, what it means."""
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
    """A document with the table of keys between its two marks made anew; ValueError where a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document must hold {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def _sections(algorithms: Iterable[str]) -> dict[str, list[Argument]]:
    """Keys by group; those of the root come last but are a section too."""
    sections: dict[str, list[Argument]] = {"algo": []}
    unique = {a.key: a for name in algorithms for a in arguments(ALGORITHMS[name].Config, "algo.")}
    for argument in (*unique.values(), *arguments(RunConfig)):
        group, dot, _ = argument.key.partition(".")
        if argument.key != "algo":
            sections.setdefault(group if dot else ROOT, []).append(argument)
    return sections | {ROOT: sections.pop(ROOT)}


def _selected(sections: dict[str, list[Argument]], words: Sequence[str]) -> dict[str, list[Argument]]:
    def fits(word: str, title: str, argument: Argument) -> bool:
        if word in sections:
            return word == title
        return word in argument.key or word.lower() in argument.help.lower()

    stems = [word.rstrip(".") for word in words]
    chosen = {t: [a for a in keys if all(fits(word, t, a) for word in stems)] for t, keys in sections.items()}
    chosen = {title: keys for title, keys in chosen.items() if keys}
    if not chosen:
        known = [*sections, *(argument.key for keys in sections.values() for argument in keys)]
        hint = nearest(words[0], known) or f"; sections: {', '.join(sections)}"
        raise UserError(f"-h {' '.join(words)}: no key fits{hint}")
    return chosen


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
                comment = dropwhile(lambda line: not line.startswith("#") or line.startswith("# @package"), lines)
                words = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), comment))
                own = "" if folder == BUILT_IN else f" ({file})"
                return re.split(r"(?<=(?<!al)\.) ", words, maxsplit=1)[0] + own
    return ""


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
