"""Public names and defaults of Stable-Baselines3 and its companion packages, written to sb3_names.json.

python -m tests.golden.makers.sb3_names [--check]

It needs stable-baselines3, sb3-contrib, sbx-rl and rl-zoo3. The packages are read, not imported: names of their
modules, classes, functions, methods, arguments and policies; the defaults of the algorithms; the names of the logged
metrics; the options of RL Zoo's `train`; and the number of its pairs of algorithm and task.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import yaml

from tests.golden.makers.files import write_text

PACKAGES = {
    "stable-baselines3": "stable_baselines3",
    "sb3-contrib": "sb3_contrib",
    "sbx-rl": "sbx",
    "rl-zoo3": "rl_zoo3",
}
DEFAULTS = {
    "PPO": "stable_baselines3/ppo/ppo.py",
    "A2C": "stable_baselines3/a2c/a2c.py",
    "SAC": "stable_baselines3/sac/sac.py",
    "sbx.SAC": "sbx/sac/sac.py",
    "RecurrentPPO": "sb3_contrib/ppo_recurrent/ppo_recurrent.py",
    "EvalCallback": "stable_baselines3/common/callbacks.py",
    "ActorCriticPolicy": "stable_baselines3/common/policies.py",
    "VecNormalize": "stable_baselines3/common/vec_env/vec_normalize.py",
}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def arguments(function: ast.AST) -> dict[str, object]:
    """Return the arguments of a function, with their defaults if these are literals, else None."""
    assert isinstance(function, FUNCTIONS)
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs) if argument.arg != "self"]
    given = [*function.args.defaults, *function.args.kw_defaults]
    values: list[object] = []
    for node in given:
        try:
            values.append(ast.literal_eval(node) if node is not None else None)
        except ValueError:
            values.append(ast.unparse(node) if node is not None else None)
    return dict(zip(names, [None] * (len(names) - len(values)) + values, strict=True))


def constructor(tree: ast.Module, name: str) -> ast.AST:
    """Return the constructor of a class."""
    (found,) = (
        part
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
        for part in node.body
        if isinstance(part, FUNCTIONS) and part.name == "__init__"
    )
    return found


def public_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes, functions and policies, and methods and arguments as `Class.method` and `name=`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "policy_aliases" and node.value is not None:
            assert isinstance(node.value, ast.Dict)
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
        if isinstance(node, FUNCTIONS | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, FUNCTIONS):
            yield from (f"{name}=" for name in arguments(node))
        if isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, FUNCTIONS) and not part.name.startswith("_")
            )


def stem(file: str) -> str:
    """Return the name of the module in a file."""
    return Path(file).stem


def texts_of_calls(tree: ast.Module, method: str) -> Iterator[str]:
    """Yield the texts among the positional arguments of calls of a method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield from (str(part.value) for part in node.args if isinstance(part, ast.Constant))


def count_settings(folder: Path) -> int:
    """Return the number of pairs of algorithm and task in the hyperparameter files of RL Zoo."""
    return sum(len({*yaml.safe_load(path.read_text())} - {"default"}) for path in folder.glob("*.yml"))


def main() -> None:
    """Write versions, names, defaults, metrics, options and the number of settings."""
    trees: dict[str, ast.Module] = {}
    roots: dict[str, Path] = {}
    for module in PACKAGES.values():
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.submodule_search_locations is not None
        root = roots[module] = Path(spec.submodule_search_locations[0])
        for path in sorted(root.rglob("*.py")):
            trees[f"{module}/{path.relative_to(root).as_posix()}"] = ast.parse(path.read_text())
    losses = [tree for name, tree in trees.items() if name.startswith(("stable_baselines3/", "sb3_contrib/ppo"))]
    found = {
        "versions": {package: metadata.version(package) for package in PACKAGES},
        "names": sorted({name for tree in trees.values() for name in public_names(tree)} | {*map(stem, trees)}),
        "defaults": {
            name: arguments(constructor(trees[file], name.rpartition(".")[2])) for name, file in DEFAULTS.items()
        },
        "metrics": sorted({text for tree in losses for text in texts_of_calls(tree, "record") if "/" in text}),
        "options": sorted(set(texts_of_calls(trees["rl_zoo3/train.py"], "add_argument"))),
        "settings": count_settings(roots["rl_zoo3"] / "hyperparams"),
    }
    write_text("sb3_names", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
