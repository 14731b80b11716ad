"""Plugins that a run needs because its script registers an environment or an algorithm.

    python -m flows.runs.script_plugins ENV_ID ALGORITHM MODULE ...

The trainer is a separate process that does not run the script. To find the modules that it must import, a child process
imports the modules given above in order until the environment and the algorithm are registered. It prints the needed
modules as one line of JSON.
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
from rlcore.config.groups import RunConfig
from rlcore.envs.suites.gym import GymnasiumSuite, ImportedSuite, entry
from rlcore.envs.suites.registry import own_class, suite_with
from rlcore.errors import UserError
from rlcore.system.lifeline import spawn
from rlcore.system.printable import print_safely

Composed = tuple[RunConfig, dict[str, Any]]


def compose_in_script(compose: Callable[[], Composed]) -> Composed:
    """Return the result of `compose` in a script, with the plugins that the run needs added to the config."""
    composed = compose()
    return compose() if name_plugins(composed[0]) else composed


def name_plugins(config: RunConfig) -> list[str]:
    """Find the modules that register a config's environment and algorithm, and declare them as plugins of the run.

    Nothing is declared if every process knows the environment and the algorithm without plugins.

    Args:
        config: config of a run that this process is about to start.

    Returns:
        The modules; empty if environment and algorithm are available in every process.

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
        raise UserError(f"{keys}: registered by this script, which the trainer's process must import; {answer['why']}")
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
    """Return the modules that register a config's environment and algorithm, by config key.

    Modules that every new process imports are omitted.
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
    """Return the answer of a new process that imports the candidates.

    The answer is {needed: modules}, {why: reason of a failed import}, or empty.
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
            before = known()
            if before < 2:
                plugins.import_plugin(module)
                needed += [module] if known() > before else []
    except UserError as error:
        return {"why": str(error)}
    return {"needed": needed} if known() == 2 else {}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(sys.argv[1], sys.argv[2], sys.argv[3:])) + "\n")
