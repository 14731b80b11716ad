"""Lists of what can be trained, and on what: `shepherd agents` and `shepherd envs`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from flows.config.search_path import BUILT_IN
from flows.config.yaml_files import presets
from flows.report.command_lines import short_path
from flows.report.terminal import console, show, table
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS, Algorithm, paper
from rlcore.config.build import build
from rlcore.config.schema import defaults
from rlcore.config.values import nearest
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

ACTIONS = {
    "Box": ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
    "Discrete": ActionSpec("Discrete", (), "int64", (2,), (0,)),
    "MultiDiscrete": ActionSpec("MultiDiscrete", (2,), "int64", (2, 3), (0, 0)),
    "MultiBinary": ActionSpec("MultiBinary", (2,), "int8", (2, 2), (0, 0)),
}
VECTOR, CHOICE = ArraySpec((3,), "float32"), ArraySpec((), "int64", n=3)
IMAGE = ArraySpec((64, 64, 3), "uint8", kind="image")
OBSERVATIONS = {
    "Box": {"state": VECTOR},
    "Discrete": {"state": CHOICE},
    "images": {"rgb": IMAGE},
    "Dict of these": {"position": VECTOR, "room": CHOICE},
}


def agents() -> None:
    """`shepherd agents`: print the algorithms and what each can be trained on."""
    plugins.load()
    show(agents_table(ALGORITHMS))


def envs(words: Sequence[str] = ()) -> None:
    """`shepherd envs`: print the suites, one line each; with words, a suite's ids or the ids that contain the word."""
    from rlcore.envs.suites.registry import SUITES, list_suite  # gymnasium

    plugins.load()
    listed = {name: suite for name, suite in SUITES.items() if suite.is_listed()}
    if not words:
        show(suites_table(listed.values()))
        return
    word = " ".join(words)
    if chosen := [name for name in listed if _simplify(name).startswith(_simplify(word))]:
        show(envs_table(list_suite(listed[name]) for name in chosen))
        return
    found = {name: [one for one in suite.ids() if _simplify(word) in _simplify(one)] for name, suite in listed.items()}
    if not any(found.values()):
        known = [*listed, *(one for suite in listed.values() for one in suite.ids())]
        raise UserError(
            f"{word}: no suite and no environment of this name{nearest(word, known)}; suites: {', '.join(listed)}; "
            "environments of your own are listed with plugins=[your_module]"
        )
    show(envs_table(list_suite(listed[name], ids) for name, ids in found.items() if ids))


def _simplify(name: str) -> str:
    """Return a name as it is compared: in lower case, without spaces and punctuation."""
    return re.sub(r"[\W_]", "", name.lower())


def suites_table(suites: Iterable[Any]) -> RenderableType:
    """One line for each suite: name, number of ids, whether it is installed, note; and how to list the ids."""
    from rlcore.envs.suites.suite import is_installed  # gymnasium

    rows = [
        (suite.name, f"{len(suite.ids()) or '-'}", _state(is_installed(suite), suite.extra), suite.note)
        for suite in suites
    ]
    head = ("suite", "environments", "state", "about")
    return Group(
        table(head, rows, numbers=("environments",)), "", Text("shepherd envs atari   lists one suite or finds an id")
    )


def _state(installed: bool, extra: str) -> str:
    return "installed" if installed else f"missing: pip install -e '.[{extra}]'"


def agents_table(algorithms: Mapping[str, Any]) -> RenderableType:
    """Each algorithm (name -> module): paper, spaces (found out by trying every kind), presets and what they reach."""
    parts: list[RenderableType] = []
    for name, module in algorithms.items():
        actions = [kind for kind, action in ACTIONS.items() if _takes(module, OBSERVATIONS["Box"], action)]
        first = ACTIONS[actions[0]] if actions else None  # which of them it is makes no odds to what is observed
        observations = (kind for kind, obs in OBSERVATIONS.items() if first and _takes(module, obs, first))
        facts = Table.grid(Column(style="dim"), Column(), padding=(0, 3, 0, 0))
        facts.add_row("paper", paper(module))
        facts.add_row("actions", ", ".join(actions))
        facts.add_row("observations", ", ".join(observations))
        behind = plugins.as_typed(plugins.bringing(module.Config.__module__))
        facts.add_row("train", shlex.join(["shepherd", "train", f"exp={name}", *behind]))
        if tuned := _list_variants(name):
            facts.add_row("or", ", ".join(f"exp={preset}" for preset in tuned))
        if (results := BUILT_IN.parent / "docs/results" / f"{name}.md").exists():
            facts.add_row("reached", f"{short_path(results)} (make validate)")
        parts += [Text(name, "bold"), Padding.indent(facts, 2)]
    return _narrow(parts)


def _list_variants(name: str) -> list[str]:
    """The presets of an algorithm beside the one of its own name; `ppo_recurrent` and those after it are not PPO's."""
    others = [other for other in ALGORITHMS if other.startswith(f"{name}_")]
    mine = [preset for preset in presets() if preset.startswith(f"{name}_")]
    return [preset for preset in mine if not any(f"{preset}_".startswith(f"{other}_") for other in others)]


def envs_table(suites: Iterable[Any]) -> RenderableType:
    """The ids of each suite, and the extra that is missing; a suite has name, extra, installed, ids, note, refused."""
    parts: list[RenderableType] = []
    for suite in suites:
        title = Text.assemble(
            (suite.name, "bold"), f" · {_state(suite.installed, suite.extra)}", f" · {suite.note}" if suite.note else ""
        )
        parts += [*([""] if parts else []), title]
        if suite.ids or not suite.refused:
            ids = Columns(suite.ids or ("no ids",), padding=(0, 2), column_first=True)
            parts.append(Padding.indent(ids, 2))
        for why in dict.fromkeys(suite.refused.values()):
            refused = ", ".join(env_id for env_id, reason in suite.refused.items() if reason == why)
            parts.append(Padding.indent(Text(f"not here: {refused} ({why})"), 2))
    return _narrow(parts)


def _narrow(parts: list[RenderableType]) -> RenderableType:
    """The parts below each other, in lines of at most 100 columns, or less on a narrower terminal."""
    return Constrain(Group(*parts), min(100, console(sys.stdout).width))


def _takes(module: Any, obs: Mapping[str, ArraySpec], action: ActionSpec) -> bool:
    """Return True if the algorithm takes these spaces: its config allows them, and a plugin's agent acts in them."""
    # Required keys are sizes, which an agent's form does not depend on, and the budget, large enough for all that
    # an algorithm wants to have begun within it.
    required = {key: 64 for key, value in defaults(module.Config).items() if value == "???"}
    values = defaults(module.Config) | required | {"total_steps": 10**9}
    images = [key for key, part in obs.items() if part.kind == "image"]
    keys = {"mlp_keys": {"encoder": [key for key in obs if key not in images]}, "cnn_keys": {"encoder": images}}
    values |= {group: names for group, names in keys.items() if group in values}
    spec = EnvSpec("", dict(obs), action)
    try:
        config = build(module.Config, values, "algo.")
        config.check_spec(spec)
    except UserError:
        return False
    if isinstance(module, Algorithm):  # its check is complete, which a test finds out by trying; torch takes seconds
        return True
    return answers(module, config, spec, empty=True) or answers(module, config, spec, empty=False)


def answers(module: Any, config: Any, spec: EnvSpec, empty: bool) -> bool:
    """Return True if an agent acts on an observation of zeros.

    With `empty` all is made of tensors that hold nothing: to draw a Dreamer's 18 million numbers takes half a
    second, and this is asked eight times. Code that reads one of them is to be tried with numbers.
    """
    import torch

    from rlcore.data.history import recalling
    from rlcore.functional.noise import Noise
    from rlcore.train.counting import NOWHERE, EmptyNoise, Nowhere

    try:
        with ExitStack() as stack:
            if empty:
                stack.enter_context(NOWHERE)
                stack.enter_context(Nowhere())
            agent = recalling(module.Agent(config, spec, "auto", torch.Generator()), spec)
            zeros = {key: torch.zeros(1, *p.shape, dtype=getattr(torch, p.dtype)) for key, p in spec.obs.items()}
            noise = EmptyNoise() if empty else Noise(0, "probe")
            agent.act(agent.initial(1), zeros, torch.ones(1, dtype=torch.bool), noise, False)
    except Exception:  # a UserError, or whatever somebody's agent meets in a space that it is not made for
        return False
    return True
