"""A docstring begins with what the object does or is, so that it is clear without the signature."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("rlcore", "flows", "benchmarks", "examples")
QUESTIONS = ("What", "Whatever", "Who", "Whether", "Which", "How", "Where", "When", "Why")
WORDS = (*QUESTIONS, "It", "Its", "They", "Their", "This", "That", "These", "Those")
# `One` as a pronoun; a number before its noun is fine: `One gradient step.`
ONE = r"One(?=[:;,.]| (after|at|before|by|for|from|in|of|on|that|to|who|with)\b)"
OPENING = re.compile(rf"(({'|'.join(WORDS)}|The same)\b|{ONE})")


def offenders(text: str) -> Iterator[str]:
    """Yield line and first line of every docstring that begins with one of these words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node) or ""
            if OPENING.match(docstring):
                yield f"{node.body[0].lineno}: {docstring.splitlines()[0]}"


def test_docstrings_do_not_open_with_question_or_pronoun() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 200
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in offenders(path.read_text())]
    assert not found, "say first what it does or is:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("docstring", "allowed"),
    [
        ("Whether it is due.", False),
        ("Tell whether it is due.", True),
        ("Whole episodes.", True),
        ("How it ends.", False),
        ("Where it lies.", False),
        ("When it ended.", False),
        ("Why it ended.", False),
        ("The same of ranks.", False),
        ("The samples of ranks.", True),
        ("Its name.", False),
        ("Items of a list.", True),
        ("One of both.", False),
        ("One: they are alike.", False),
        ("One gradient step.", True),
        ("One-hot samples.", True),
    ],
)
@pytest.mark.parametrize(
    "place", ["{}", "class A:\n    {}", "def f():\n    {}", "async def f():\n    def g():\n        {}"]
)
def test_docstring_rule_on_examples(place: str, docstring: str, allowed: bool) -> None:
    assert (list(offenders(place.format(f'"""{docstring}"""'))) == []) == allowed
