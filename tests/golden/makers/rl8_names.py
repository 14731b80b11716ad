"""Public names of rl8 1.0.0, written to rl8_names.json.

python -m tests.golden.makers.rl8_names [--check]      # with rl8==1.0.0 installed

The package is read, not imported: classes, functions and attributes of its public modules, keys of its configurations,
statistics, and options of its command.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from tests.golden.makers.files import write_text

PACKAGES = ("algorithms", "models", "nn", "policies", "trainers")
MODULES = ("conditions", "data", "distributions", "env", "schedulers", "views")
CONFIGS = {"AlgorithmConfig", "RecurrentAlgorithmConfig", "TrainConfig"}
METHODS = {"Env", "EnvFactory", "Trainer", "GenericTrainerBase", "Algorithm", "Distribution", "Condition"}


def public(node: ast.AST) -> str | None:
    """Return the name of a public class or function, else None."""
    return node.name if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_") else None


def exported(module: ast.Module) -> Iterator[str]:
    """Yield the names that the `__init__` of a package imports."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from (alias.name for alias in node.names if not alias.name.startswith("_"))


def fields(node: ast.ClassDef) -> list[str]:
    """Return the annotated attributes of a class."""
    return [
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]


def literals(node: ast.ClassDef) -> dict[str, object]:
    """Return the defaults of a class's attributes, if they are literals."""
    found: dict[str, object] = {}
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.value is not None:
            try:
                found[part.target.id] = ast.literal_eval(part.value)
            except ValueError:
                found[part.target.id] = ast.unparse(part.value)
    return found


def main() -> None:
    """Write the names by kind."""
    spec = importlib.util.find_spec("rl8")
    assert spec is not None and spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0])
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}
    names: dict[str, object] = {"rl8": sorted(exported(trees["__init__.py"]))}
    for package in PACKAGES:
        names[package] = sorted(exported(trees[f"{package}/__init__.py"]))
    for module in MODULES:
        names[module] = sorted(name for node in trees[f"{module}.py"].body if (name := public(node)))
    classes = {node.name: node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    names["keys"] = {name: fields(classes[name]) for name in sorted(CONFIGS)}
    names["defaults"] = {name: literals(classes[name]) for name in ("AlgorithmConfig", "RecurrentAlgorithmConfig")}
    names["methods"] = sorted(
        {f"{name}.{method}" for name in METHODS for node in classes[name].body if (method := public(node))}
    )
    names["statistics"] = sorted(
        {
            str(key.value)
            for node in trees["data.py"].body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.value.args) == 2
            for key in (node.value.args[1].keys if isinstance(node.value.args[1], ast.Dict) else ())
            if isinstance(key, ast.Constant)
        }
    )
    names["options"] = sorted(
        {
            str(argument.value)
            for node in ast.walk(trees["__main__.py"])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
            for argument in node.args
            if isinstance(argument, ast.Constant)
        }
    )
    names["data_keys"] = [part.targets[0].id for part in classes["DataKeys"].body if isinstance(part, ast.Assign)]  # type: ignore[attr-defined]
    write_text("rl8_names", json.dumps(names, indent=1) + "\n")


if __name__ == "__main__":
    main()
