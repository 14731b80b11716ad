"""Imports inside functions are only for start-up time: they load a heavy library, or a comment explains them.

Such an import is allowed if it loads a library of `HEAVY`, directly or through our modules, that its file has
not loaded at the top already. Every other import goes to the top of its file, or has a comment on or above its line.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rlcore", "flows")
# Libraries that take more than 40 ms to import.
HEAVY = frozenset(
    [
        "cyclopts",
        "dotenv",
        "dvc",
        "fastapi",
        "gymnasium",
        "httpx",
        "hydra",
        "imageio_ffmpeg",
        "lightning_fabric",
        "matplotlib",
        "mlflow",
        "mujoco",
        "numpy",
        "omegaconf",
        "optuna",
        "pandas",
        "prefect",
        "psutil",
        "requests",
        "rich",
        "safetensors",
        "scipy",
        "sqlalchemy",
        "tensorboard",
        "torch",
        "tqdm",
        "uvicorn",
    ]
)
# Files whose imports have not been moved yet. May only become shorter.
NOT_YET: frozenset[str] = frozenset()
COMMENT = re.compile(r"#\s*(?!noqa\b|pyright:|type:)[`\w]|#\s*noqa\b[^#]* - \w")


class Sources:
    """Modules in a folder, and what importing each of them loads."""

    def __init__(self, root: Path, packages: tuple[str, ...]) -> None:
        self.root, self.packages = root, packages
        self.files = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
            for package in packages
            for path in sorted((root / package).rglob("*.py"))
        }

    @functools.cache  # noqa: B019 - one instance for a test
    def tree(self, module: str) -> ast.Module:
        return ast.parse(self.files[module].read_text())

    def names(self, module: str, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """Yield the modules that a statement imports, with their parent packages."""
        if isinstance(statement, ast.Import):
            targets = [alias.name for alias in statement.names]
        else:
            assert statement.level == 0, f"{module} imports relatively"
            targets = [str(statement.module)]
            targets += [name for alias in statement.names if (name := f"{statement.module}.{alias.name}") in self.files]
        for target in targets:
            parts = target.split(".")
            yield from (".".join(parts[: i + 1]) for i in range(len(parts)))

    @functools.cache  # noqa: B019 - one instance for a test
    def imported(self, module: str) -> tuple[str, ...]:
        """Return the modules that the statements at the top of a module import, with their parent packages."""
        return tuple(name for statement in at_top(self.tree(module)) for name in self.names(module, statement))

    @functools.cache  # noqa: B019 - one instance for a test
    def loads(self, module: str) -> frozenset[str]:
        """Return our modules and the heavy libraries that importing a module loads."""
        found, waiting = set(), [module]
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            if name in self.files:
                found.add(name)
                waiting.extend(self.imported(name))
            elif name in HEAVY:
                found.add(name)
        return frozenset(found)

    def offenders(self, module: str) -> Iterator[str]:
        lines = self.files[module].read_text().splitlines()
        loaded = self.loads(module)
        for statement in inside_functions(self.tree(module)):
            brought: frozenset[str] = frozenset()
            for name in self.names(module, statement):
                brought |= self.loads(name)
            around = lines[max(0, statement.lineno - 2) : statement.end_lineno]
            explained = COMMENT.search(" ".join(around[1:])) or (around[0].lstrip().startswith("#"))
            if not explained and not (brought & HEAVY) - loaded:
                yield f"{self.files[module].relative_to(self.root)}:{statement.lineno}: {ast.unparse(statement)}"


def at_top(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield imports that run when a module is loaded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from at_top(node)


def inside_functions(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield imports that run when a function is called."""
    seen = set(at_top(tree))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Import, ast.ImportFrom)) and inner not in seen:
                    seen.add(inner)
                    yield inner


def test_imports_inside_functions_are_heavy_or_explained() -> None:
    sources = Sources(ROOT, PACKAGES)
    found = [
        line
        for module, path in sources.files.items()
        if str(path.relative_to(ROOT)) not in NOT_YET
        for line in sources.offenders(module)
    ]
    assert not found, "move these to the top of their file, or say why they stand there:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        ("import json", False),
        ("import torch", True),
        ("from torch.nn import Linear", True),
        ("import mlflow.entities", False),  # mlflow is there already
        ("from own.light import x", False),
        ("from own.leads_to_torch import x", True),
        ("from own import leads_to_torch", True),
        ("import json  # only one run in a hundred reads it", True),
        ("# only one run in a hundred reads it\n    import json", True),
        ("import json  # `own.user` is imported first of all", True),
        ("import json  # noqa: F401", False),
        ("import json  # noqa: F401 - registers its types", True),
    ],
)
def test_import_rule_on_examples(tmp_path: Path, body: str, allowed: bool) -> None:
    (tmp_path / "own").mkdir()
    for name, text in {
        "__init__": "",
        "light": "import re",
        "leads_to_torch": "from own.further import y",
        "further": "import torch",
        "user": f"import mlflow\n\ndef function():\n    {body}\n",
    }.items():
        (tmp_path / "own" / f"{name}.py").write_text(text)
    assert (list(Sources(tmp_path, ("own",)).offenders("own.user")) == []) == allowed
