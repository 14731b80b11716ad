"""MkDocs hooks that generate the reference pages and point links to source files at the repository.

MkDocs calls the functions `on_...` (mkdocs.yml, `hooks`).
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = "reference/changelog.md"  # generated from CHANGELOG.md in the root folder
# Public modules, for users of the library and authors of plugins. All other modules may change without notice.
PUBLIC = [
    "flows/__init__.py",
    "flows/train.py",
    "flows/group.py",
    "flows/sweep.py",
    "flows/comparison.py",
    "flows/reproduce.py",
    "flows/stages/*.py",
    "flows/config/compose.py",
    "flows/runs/frames.py",
    "flows/tracking/loggers.py",
    "rlcore/*.py",
    "rlcore/config/*.py",
    "rlcore/train/build.py",
    "rlcore/train/callbacks.py",
    "rlcore/train/player.py",
    "rlcore/train/run_trainer.py",
    "rlcore/train/stopping.py",
    "rlcore/train/trainer.py",
    "rlcore/conformance/__init__.py",
    "rlcore/evaluation/export.py",
    "rlcore/evaluation/loaded_*.py",
    "rlcore/algorithms/*.py",
    "rlcore/algorithms/on_policy/*.py",
    "rlcore/algorithms/on_policy/*/config.py",
    "rlcore/algorithms/on_policy/*/learner.py",
    "rlcore/algorithms/sac/*.py",
    "rlcore/algorithms/dreamer/*.py",
    "rlcore/functional/*.py",
    "rlcore/nn/*.py",
    "rlcore/optim/*.py",
    "rlcore/data/*.py",
    "rlcore/envs/make.py",
    "rlcore/envs/batched/env.py",
    "rlcore/envs/suites/suite.py",
    "rlcore/envs/suites/registry.py",
    "rlcore/envs/vector/choose.py",
    "rlcore/envs/vector/episodic.py",
    "rlcore/store/directory.py",
    "rlcore/store/events.py",
    "rlcore/store/series.py",
]
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^):#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages: command line, changelog, and one page for each public module."""
    pages = {"reference/cli.md": command_line(), CHANGELOG: (ROOT / "CHANGELOG.md").read_text()}
    pages |= dict(python_pages())
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def command_line() -> str:
    """Return the page of all commands, generated from the parser of `shepherd`."""
    from flows.cli.parser import parser

    root = parser()
    lines = ["# Command line", "", root.description or "", ""]
    for name, command in root.commands.items():
        lines += [f"## shepherd {name}", "", "```", command.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def python_pages() -> list[tuple[str, str]]:
    """Return path and text of the page of each public module, and of their index."""
    index = ["# Python API", "", "| module | contents |", "|---|---|"]
    pages = []
    for source in [path for pattern in PUBLIC for path in sorted(ROOT.glob(pattern))]:
        tree = ast.parse(source.read_text())
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        if not any(isinstance(node, kinds) and not node.name.startswith("_") for node in tree.body):
            continue
        documentation = ast.get_docstring(tree)
        if not documentation:
            raise PluginError(f"{source.relative_to(ROOT)} defines public objects and has no module docstring")
        name = ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        pages.append((f"reference/python/{name}.md", f"::: {name}\n    options:\n      heading_level: 1\n"))
        summary = documentation.splitlines()[0].replace("|", r"\|")
        index.append(f"| [`{name}`]({name}.md) | {summary} |")
    return [("reference/python/index.md", "\n".join(index) + "\n"), *pages]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace links to files outside the documentation by links to these files in the repository.

    If the config has no `repo_url`, only the text of such a link is kept.
    """
    here = posixpath.dirname(page.file.src_uri)
    folder = "" if page.file.src_uri == CHANGELOG else posixpath.join("docs", here)

    def point(match: re.Match[str]) -> str:
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/"):
            return f"[{text}]({posixpath.relpath(path, posixpath.join('docs', here))}{anchor})"
        if not (ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri}: the link points to {path}, which does not exist")
        return f"[{text}]({config.repo_url}/blob/main/{path}{anchor})" if config.repo_url else text

    return markdown if page.file.src_uri.startswith("reference/python/") else LINK.sub(point, markdown)
