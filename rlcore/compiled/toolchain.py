"""Detection of the C++ compiler of this machine. Does not import torch."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

PLAIN_PATH = re.compile(r"[\w/.+-]+", re.ASCII)


def find_compiler() -> str | None:
    """Return the path of the C++ compiler: CXX, else g++, else clang++; None if this machine has none."""
    # CXX may start with a wrapper: `ccache g++`.
    candidates = os.environ.get("CXX", "").split()[::-1] or ["g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def missing_requirement() -> str | None:
    """Return why this machine cannot compile, and how to fix that; None if it can."""
    if find_compiler() is None:
        return "this machine has no C++ compiler (CXX, g++, clang++); on Debian and Ubuntu: apt install g++"
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    if PLAIN_PATH.fullmatch(torch.origin) is None:
        folder = Path(torch.origin).parent
        return f"the compiler cannot read torch's headers in {folder}; install in a path without special characters"
    return None


@functools.cache
def compiler_version(path: str) -> str:
    """Return the first line of `<compiler> --version`."""
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
