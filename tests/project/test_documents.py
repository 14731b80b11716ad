"""Modules, files and links in the documents exist, and the API reference contains the modules of the guides."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]

GENERATED = "reference/"  # pages that .ci/docs_hooks.py makes; `make docs` checks links to them


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def exists(dotted: str) -> bool:
    """Return whether `package.module.name.more` is a package, a module or a name in the file of a module."""
    parts = dotted.split(".")
    for last in range(len(parts), 0, -1):
        place, names = ROOT.joinpath(*parts[:last]), parts[last : last + 1]
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.is_file():
            return all(re.search(rf"\b{name}\b", source.read_text()) for name in names)
    return False


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_names_existing_files_and_modules(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) if not link.startswith(("#", GENERATED))]
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    places = [ROOT, ROOT / "rlcore", ROOT / "flows"]  # docs/algorithms name files by their place in rlcore
    files = re.findall(r"`([\w/]+/[\w/]*\w\.(?:py|npz))`", text)
    missing += [name for name in files if not any((place / name).exists() for place in places)]
    modules = re.findall(r"(?:`|python -m )((?:rlcore|flows)(?:\.\w+)+)", text)
    missing += [name for name in modules if not exists(name)]
    for block in blocks(text, "python"):
        for node in ast.walk(ast.parse(textwrap.dedent(re.sub(r"\A# .*\n", "", block)))):  # some are parts of a class
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("rlcore", "flows"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                missing += [name for name in names if not exists(name)]
    assert missing == []


def source(dotted: str) -> Path | None:
    """Return the file of a module or package, or None if there is none."""
    place = ROOT.joinpath(*dotted.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return file if file.is_file() else None


def defines_public(file: Path) -> bool:
    """Return whether a module defines a public class or function, and does not only import some."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name[0] != "_" for node in ast.parse(file.read_text()).body)


def imported(code: str) -> Iterator[Path]:
    """Yield the files of this project's modules from which a program imports."""
    for node in ast.walk(ast.parse(textwrap.dedent(re.sub(r"\A# .*\n", "", code)))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("rlcore", "flows"):
            for alias in node.names:
                file = source(f"{node.module}.{alias.name}") or source(str(node.module))
                assert file is not None
                yield file


def test_api_reference_contains_modules_of_guides() -> None:
    hooks = ast.parse((ROOT / ".ci/docs_hooks.py").read_text())
    (patterns,) = (
        ast.literal_eval(node.value)
        for node in hooks.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PUBLIC"
    )
    public = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert all([*ROOT.glob(pattern)] for pattern in patterns)
    programs = [block for document in DOCUMENTS for block in blocks((ROOT / document).read_text(), "python")]
    programs += [path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))]
    files = {file for program in programs for file in imported(program) if defines_public(file)}
    assert len(files) > 20
    assert sorted(str(file.relative_to(ROOT)) for file in files - public) == []
