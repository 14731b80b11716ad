"""Text of `shepherd train -h` and table of keys in docs/configuration.md, both generated from the typed config.

python -m flows.cli.help docs/configuration.md      # regenerates the table
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.compose import compose
from flows.config.yaml_files import BUILT_IN, available, config_folders, default_names, presets
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import REQUIRED, Argument, arguments
from rlcore.config.values import at, nearest, plain, spell
from rlcore.errors import UserError

WIDTH, PRESET = 100, 20  # columns of the text, and before the description of a preset
ROOT = "run"  # section of keys without a group
BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
USAGE = """\
usage: shepherd train exp=PRESET [key=value ...]

Train an agent, evaluate it and register the model. A preset sets the algorithm, the environment and
their hyperparameters. Arguments after the preset override its values: GROUP=FILE selects a config
file (env=mujoco logger=csv optim=adamw), KEY=VALUE sets one key (algo.optimizer.lr=3e-4).

  shepherd train exp=ppo env.id=Acrobot-v1 env.num_envs=8 algo.total_steps=200000 seed=3
  shepherd train -h algo                 show one section, here algo
  shepherd train -h schedule             show the keys that contain a word, here schedule
  shepherd train -h exp=ppo_pendulum     show the values of a preset, here ppo_pendulum
"""


def train_help(words: Sequence[str] = ()) -> str:
    """Return the text of `shepherd train -h`, at most 100 columns wide.

    Args:
        words: a word with `=` is an override; the help then shows the keys and values of the config that results from
            all overrides, and defaults that differ from them. Any other word selects keys: all keys of a section, such
            as `algo`, or the keys whose name or description contains the word.

    Returns:
        The help text.

    Raises:
        UserError: an override is invalid, or no key matches all words.
    """
    plugins.load()
    overrides = [word for word in words if "=" in word]
    filters = [word.rstrip(".") for word in words if "=" not in word]
    algorithms, values, shown = list(ALGORITHMS), {}, "The values shown are defaults; a preset may change them."
    if overrides:
        config, values = compose(overrides)
        algorithms, shown = [config.algo.name], f"The values shown are those of {' '.join(overrides)}."
    sections = _select(_sections(algorithms), filters)
    head = [] if filters else [USAGE, _choices()]
    return "\n".join([*head, shown, "", *(_section(title, keys, values) for title, keys in sections.items())]).rstrip()


def table() -> str:
    """Return all keys in Markdown, in a table for each section, with key, default, allowed values and meaning."""
    lines: list[str] = []
    for title, keys in _sections(ALGORITHMS).items():
        lines += [f"### {title}", "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for argument in keys:
            value, nested = _default(argument), argument.key.count(".") > 1
            default = _text(value) if value is REQUIRED else f"`{_text(value)}`"
            meaning = f"{argument.group}: {_meaning(argument)}" if nested else _meaning(argument)
            cells = (f"`{argument.key}`", default, argument.allowed, meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def rewrite(text: str) -> str:
    """Return a document in which the table of keys between the markers `BEGIN` and `END` is regenerated.

    Raises ValueError if a marker is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document must contain {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def _sections(algorithms: Iterable[str]) -> dict[str, list[Argument]]:
    """Return a dict from the name of each group of keys, such as `algo` or `env`, to the definitions of its keys.

    Keys of algorithms come first, keys without a group last.
    """
    sections: dict[str, list[Argument]] = {}
    by_key: dict[str, dict[str, Argument]] = {}  # key -> algorithm -> argument
    names = list(algorithms)
    for name in names:
        for argument in arguments(ALGORITHMS[name].Config, "algo."):
            by_key.setdefault(argument.key, {})[name] = argument
    for argument in (*(_of_all(given, names) for given in by_key.values()), *arguments(RunConfig)):
        if argument.key != "algo":
            sections.setdefault(argument.key.rpartition(".")[0].partition(".")[0] or ROOT, []).append(argument)
    return sections | {ROOT: sections.pop(ROOT)}


def _of_all(given: Mapping[str, Argument], names: Sequence[str]) -> Argument:
    """Merge the definitions of one key in the configs of several algorithms into one definition.

    Two notes are added to the help text if necessary: the names of the algorithms that have the key, if some do not
    have it; and every default that differs from the default of the first algorithm.

    Args:
        given: algorithm -> definition of the key.
        names: all algorithms of the help text.

    Returns:
        The merged definition.
    """
    first = next(iter(given.values()))
    if first.key == "algo.name":
        return dataclasses.replace(first, choices=tuple(given))
    notes = [] if len(given) == len(names) else [f"{', '.join(given)} only"]
    notes += [f"{name}: {_text(_default(a))}" for name, a in given.items() if _default(a) != _default(first)]
    return dataclasses.replace(first, help=f"{first.help} ({'; '.join(notes)})") if notes else first


def _select(sections: dict[str, list[Argument]], words: Sequence[str]) -> dict[str, list[Argument]]:
    def fits(word: str, title: str, argument: Argument) -> bool:
        return word == title if word in sections else word in argument.key or word.lower() in argument.help.lower()

    chosen = {t: [a for a in keys if all(fits(word, t, a) for word in words)] for t, keys in sections.items()}
    if not any(chosen.values()):
        known = [*sections, *(argument.key for keys in sections.values() for argument in keys)]
        hint = nearest(words[0], known) or f"; sections: {', '.join(sections)}"
        raise UserError(f"-h {' '.join(words)}: no key matches{hint}")
    return {title: keys for title, keys in chosen.items() if keys}


def _choices() -> str:
    """Return help text that lists the presets with descriptions, and the config files of the other groups."""
    lines = ["presets (exp=)"]
    for name in presets():
        start = f"  {name:<16}  "
        if len(start) > PRESET:  # a long name gets its own line
            lines.append(start.rstrip())
            start = " " * PRESET
        lines += _hanging(start, _about(name))
    lines += ["", "files of the groups"]
    for group in ("algo", "env", "optim", "logger"):
        lines += _hanging(f"  {group + '=':<18}", ", ".join(name for name in available(group) if name != "default"))
    return "\n".join([*lines, ""])


def _about(preset: str) -> str:
    """Return a preset's description: the first sentence of the comment in its file.

    If the user has written the preset, the path of the file is added.
    """
    files = (folder / "exp" / f"{preset}.yaml" for folder in config_folders())
    file = next(file for file in files if file.is_file())
    comment = re.search(r"^#(?! @package).*(\n#.*)*", file.read_text(errors="replace"), re.MULTILINE)
    words = re.sub(r"\s*(^|\n)[# ]+", " ", comment[0]).strip() if comment else ""
    own = "" if file.is_relative_to(BUILT_IN) else f" ({file})"
    return re.split(r"(?<=(?<!al)\.) ", words, maxsplit=1)[0] + own


def _section(title: str, keys: Sequence[Argument], values: Mapping[str, Any]) -> str:
    """Return the keys of a section with their values, meanings and allowed values."""
    lines, part = [title], title
    for argument in keys:
        if argument.key.rpartition(".")[0] not in (part, ""):
            part = argument.key.rpartition(".")[0]
            if part != title:
                lines += _hanging("  ", f"{part}: {argument.group}")
        default = _default(argument)
        value = at(values, argument.key, default)
        default_text = f"    (default {_text(default)})" if value != default else ""
        lines += _hanging("  ", f"{argument.key} = {_text(value)}{default_text}")
        lines += _hanging("      ", f"{_meaning(argument)}. Allowed: {argument.allowed}".lstrip(". "))
    return "\n".join([*lines, ""])


def _meaning(argument: Argument) -> str:
    return f"{argument.help} (no effect: {argument.unused})" if argument.unused else argument.help


def _hanging(start: str, text: str) -> list[str]:
    behind = " " * len(start)
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=behind, break_long_words=False) or [
        start.rstrip()
    ]


def _default(argument: Argument) -> Any:
    return default_names().get(argument.key, plain(argument.default))


def _text(value: Any) -> str:
    """Return a value in command-line syntax, or `required` if the config must set it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    return "required" if value is REQUIRED else spell(value) or "''"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(rewrite(path.read_text()))
