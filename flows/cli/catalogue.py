"""Commands `shepherd agents` and `shepherd envs`, which list algorithms and environments."""

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

from flows.config.yaml_files import BUILT_IN, presets
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
ACTIONS["Dict, Tuple"] = ActionSpec(
    "Composite", (3,), "float64", parts=(ACTIONS["Box"], ACTIONS["Discrete"]), names=("0", "1")
)
VECTOR, CHOICE = ArraySpec((3,), "float32"), ArraySpec((), "int64", n=3)
IMAGE = ArraySpec((64, 64, 3), "uint8", kind="image")
OBSERVATIONS = {
    "Box": {"state": VECTOR},
    "Discrete": {"state": CHOICE},
    "images": {"rgb": IMAGE},
    "Dict of these": {"position": VECTOR, "room": CHOICE},
}


def agents() -> None:
    """Print the algorithms and the spaces that each supports (`shepherd agents`)."""
    plugins.load()
    show(agents_table(ALGORITHMS))


def envs(words: Sequence[str] = ()) -> None:
    """Print the available environments (`shepherd envs`).

    Without `words`, print a line for each environment suite. If `words` are the beginning of a suite's name, print the
    environment ids of that suite. Otherwise print all environment ids that contain `words`, and raise UserError if
    there are none. Case, spaces and punctuation are ignored.
    """
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
    matches = {
        name: [one for one in suite.ids() if _simplify(word) in _simplify(one)] for name, suite in listed.items()
    }
    if not any(matches.values()):
        known = [*listed, *(one for suite in listed.values() for one in suite.ids())]
        raise UserError(
            f"{word}: no suite or environment has this name{nearest(word, known)}; suites: {', '.join(listed)}; "
            "to list your own environments, add plugins=[your_module]"
        )
    show(envs_table(list_suite(listed[name], ids) for name, ids in matches.items() if ids))


def _simplify(name: str) -> str:
    """Return a name in lower case, without spaces and punctuation, for comparisons."""
    return re.sub(r"[\W_]", "", name.lower())


def suites_table(suites: Iterable[Any]) -> RenderableType:
    """Return a table of the environment suites.

    Its columns are the suite's name, the number of its environment ids, "installed" or the pip command that installs
    the suite, and a short description.
    """
    from rlcore.envs.suites.suite import is_installed  # gymnasium

    rows = [
        (suite.name, f"{len(suite.ids()) or '-'}", _state(is_installed(suite), suite.extra), suite.note)
        for suite in suites
    ]
    head = ("suite", "environments", "state", "about")
    return Group(
        table(head, rows, numbers=("environments",)), "", Text("to list one suite or find ids: shepherd envs atari")
    )


def _state(installed: bool, extra: str) -> str:
    return "installed" if installed else f"missing: pip install -e '.[{extra}]'"


def agents_table(algorithms: Mapping[str, Any]) -> RenderableType:
    """Return a table of algorithms: paper, supported spaces, presets and results.

    To determine the supported spaces, the function builds a config of the algorithm for an example of each kind of
    space and observes if the config rejects it.

    Args:
        algorithms: name of each algorithm -> its module.

    Returns:
        The table as a renderable of the package `rich`.
    """
    parts: list[RenderableType] = []
    for name, module in algorithms.items():
        actions = [kind for kind, action in ACTIONS.items() if _takes(module, OBSERVATIONS["Box"], action)]
        first = ACTIONS[actions[0]] if actions else None  # supported observations do not depend on the action space
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
            facts.add_row("results", f"{short_path(results)} (make validate)")
        parts += [Text(name, "bold"), Padding.indent(facts, 2)]
    return _narrow(parts)


def _list_variants(name: str) -> list[str]:
    """Return the presets whose names are the algorithm's name and a suffix, such as `ppo_pendulum` for `ppo`.

    Presets of other algorithms are excluded: `ppo_recurrent` is an algorithm, not a preset of `ppo`.
    """
    others = [other for other in ALGORITHMS if other.startswith(f"{name}_")]
    mine = [preset for preset in presets() if preset.startswith(f"{name}_")]
    return [preset for preset in mine if not any(f"{preset}_".startswith(f"{other}_") for other in others)]


def envs_table(suites: Iterable[Any]) -> RenderableType:
    """List the environment ids of each suite, and the pip command that installs a missing suite.

    Args:
        suites: objects with the attributes `name`; `installed`, True if the suite's packages are installed; `extra`,
            the name of the optional dependencies for pip; `ids`, the environment ids; `note`, a short description;
            and `refused`, a mapping from each id that cannot be used to the reason.

    Returns:
        The lists as a renderable of the package `rich`.
    """
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
            parts.append(Padding.indent(Text(f"not available: {refused} ({why})"), 2))
    return _narrow(parts)


def _narrow(parts: list[RenderableType]) -> RenderableType:
    """Stack the parts vertically in one renderable, which is as wide as the terminal but at most 100 columns."""
    return Constrain(Group(*parts), min(100, console(sys.stdout).width))


def _takes(module: Any, obs: Mapping[str, ArraySpec], action: ActionSpec) -> bool:
    """Return True if the algorithm supports an environment with these observations and actions.

    The check `check_spec` of the algorithm's config must accept the environment. If the algorithm comes from a plugin,
    the agent must also be able to compute an action for an example observation.
    """
    # Required keys are sizes, whose values do not matter here, and the budget, which must be large enough for the
    # checks of every algorithm.
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
    if isinstance(module, Algorithm):  # a test proves that its check is complete; importing torch would take seconds
        return True
    return answers(module, config, spec, empty=True) or answers(module, config, spec, empty=False)


def answers(module: Any, config: Any, spec: EnvSpec, empty: bool) -> bool:
    """Return True if a new agent of an algorithm can compute an action for an observation of zeros.

    Args:
        module: module of the algorithm.
        config: config of the algorithm.
        spec: observation and action spaces of the environment.
        empty: if True, create the agent with meta tensors, which have shapes but no data. This saves the initialization
            of the parameters, which takes 0.5 s for the 18 million parameters of a Dreamer. An agent that reads the
            values of its parameters or observations needs `empty=False`.

    Returns:
        True if the agent returned an action, False if it raised an error.
    """
    import torch

    from rlcore.data.history import with_history
    from rlcore.functional.noise import Noise
    from rlcore.train.counting import NOWHERE, EmptyNoise, MetaTensors

    try:
        with ExitStack() as stack:
            if empty:
                stack.enter_context(NOWHERE)
                stack.enter_context(MetaTensors())
            agent = with_history(module.Agent(config, spec, "auto", torch.Generator()), spec)
            zeros = {key: torch.zeros(1, *p.shape, dtype=getattr(torch, p.dtype)) for key, p in spec.obs.items()}
            noise = EmptyNoise() if empty else Noise(0, "probe")
            agent.act(agent.initial(1), zeros, torch.ones(1, dtype=torch.bool), noise, False)
    except Exception:  # a UserError, or any error of an agent of a plugin in a space that it does not support
        return False
    return True
