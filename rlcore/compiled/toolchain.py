"""Detection of the C++ compiler of this machine. This module does not import torch."""

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
    """Return the path of the C++ compiler, or None if this machine has none.

    It is the one in the environment variable CXX or, if that is not set, g++ or clang++.
    """
    # CXX may start with a wrapper: `ccache g++`.
    candidates = os.environ.get("CXX", "").split()[::-1] or ["g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def missing_requirement() -> str | None:
    """Return the reason why functions cannot be compiled on this machine, with a fix; None if they can."""
    if find_compiler() is None:
        return "this machine has no C++ compiler (CXX, g++, clang++); on Debian and Ubuntu: apt install g++"
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    if PLAIN_PATH.fullmatch(torch.origin) is None:
        folder = Path(torch.origin).parent
        return (
            f"the C++ compiler cannot read torch's headers in {folder}, because the path contains special characters; "
            "install torch in a path of letters, digits and / _ . + - only"
        )
    return None


@functools.cache
def compiler_version(path: str) -> str:
    """Return the first line of `<compiler> --version`."""
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
