"""Plugins that a run needs because the user's script registers an environment or an algorithm.

    python -m flows.runs.script_plugins ENV_ID ALGORITHM MODULE ...

The trainer is a separate process, which does not run the user's script. It must import the modules that register the
environment and the algorithm. The command above finds these modules. It imports each MODULE in order until ENV_ID and
ALGORITHM are registered, and prints the modules that were needed as one line of JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium.envs

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS, Algorithm
from rlcore.config.run import RunConfig
from rlcore.envs.suites.gym import GymnasiumSuite, ImportedSuite, entry
from rlcore.envs.suites.registry import own_class, suite_with
from rlcore.errors import UserError
from rlcore.system.lifeline import spawn
from rlcore.system.printable import print_safely

Composed = tuple[RunConfig, dict[str, Any]]


def compose_in_script(compose: Callable[[], Composed]) -> Composed:
    """Call `compose`, a function that composes a config, in a user's script, and return its result.

    If the script registers the environment or the algorithm, the needed modules are declared as plugins of the run.
    """
    composed = compose()
    return compose() if name_plugins(composed[0]) else composed


def name_plugins(config: RunConfig) -> list[str]:
    """Find the modules that register a config's environment and algorithm, and declare them as plugins of the run.

    No plugin is declared if the environment and the algorithm are built in or belong to plugins of the config.

    Args:
        config: config of a run that this process is about to start.

    Returns:
        The names of the modules that were declared as plugins; may be empty.

    Raises:
        UserError: If there is no module that another process can import.
    """
    sources = _sources(config)
    unknown = {key: module for key, module in sources.items() if not _is_of_plugin(module)}
    if not unknown:
        return []
    values = {"env.id": config.env.id, "algo.name": config.algo.name}
    keys = " and ".join(f"{key}={values[key]}" for key in unknown)
    script = _script()
    packages = [module.partition(".")[0] for module in unknown.values()]
    candidates = [*dict.fromkeys(name for name in (*packages, script) if name not in ("", "__main__"))]
    answer = _ask_child(values["env.id"] if "env.id" in sources else "", values["algo.name"], candidates)
    if "why" in answer:
        raise UserError(
            f"{keys}: registered in this script, but the trainer's process cannot import it; {answer['why']}"
        )
    if "needed" not in answer:
        raise UserError(
            f"{keys}: registered in this process only, but a run is trained in another process; move the registration "
            "to the top level of a module, such as my_envs.py, and add plugins=[my_envs]"
        )
    needed: list[str] = answer["needed"]
    if script in needed:
        sys.modules[script] = sys.modules["__main__"]  # the script has run; an import would register everything again
    plugins.name(needed)
    for typed in plugins.as_typed(needed):
        print_safely(f"{keys}: trained with {typed}; commands on this run need {typed} too", file=sys.stderr)
    return needed


def _sources(config: RunConfig) -> dict[str, str]:
    """Return {"env.id": module that registers the environment, "algo.name": module that registers the algorithm}.

    An entry is omitted if the environment or algorithm is built in.
    """
    sources: dict[str, str] = {}
    suite = None if own_class(config.env.wrapper) else suite_with(config.env.id)
    if isinstance(suite, GymnasiumSuite) and not isinstance(suite, ImportedSuite):
        if f'"{config.env.id}"' not in inspect.getsource(gymnasium.envs):  # not one of Gymnasium's own
            sources["env.id"] = entry(gymnasium.registry[config.env.id]).partition(":")[0]
    elif suite is not None and not type(suite).__module__.startswith("rlcore."):
        sources["env.id"] = type(suite).__module__
    if not isinstance(algorithm := ALGORITHMS[config.algo.name], Algorithm):
        sources["algo.name"] = getattr(algorithm, "__name__", "__main__")
    return sources


def _is_of_plugin(module: str) -> bool:
    return any(f"{module}.".startswith(f"{plugin}.") for plugin in plugins.list_named())


def _script() -> str:
    """Return the module name of the running script; "" if it cannot be imported, for example a notebook."""
    main = sys.modules["__main__"]
    file = Path(getattr(main, "__file__", None) or "")
    name = main.__spec__.name if main.__spec__ else file.stem
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    return name if spec and spec.origin and Path(spec.origin).resolve() == file.resolve() else ""


def _ask_child(env_id: str, algorithm: str, candidates: list[str]) -> dict[str, Any]:
    """Start a process that imports the candidate modules, and return its answer.

    The answer is {needed: modules}, or {why: reason of a failed import}. It is {} if no candidate registers the
    environment or the algorithm.
    """
    child = spawn(__name__, env_id, algorithm, *candidates, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    output, _ = child.communicate()
    try:
        return json.loads(output.decode(errors="replace").strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"why": f"a process that imported {', '.join(candidates)} ended with exit code {child.returncode}"}


def _answer(env_id: str, algorithm: str, candidates: list[str]) -> dict[str, Any]:
    """Import modules in order until environment and algorithm are registered; return the modules that were needed."""

    def known() -> int:
        return (not env_id or suite_with(env_id) is not None) + (algorithm in ALGORITHMS)

    needed: list[str] = []
    try:
        plugins.load()
        for module in candidates:
            count = known()
            if count < 2:
                plugins.import_plugin(module)
                needed += [module] if known() > count else []
    except UserError as error:
        return {"why": str(error)}
    return {"needed": needed} if known() == 2 else {}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(sys.argv[1], sys.argv[2], sys.argv[3:])) + "\n")
