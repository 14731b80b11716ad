"""Modules, files and links in the documents exist."""

from __future__ import annotations

import ast
import re
import textwrap
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
