"""The C++ compiler of this machine, if there is one, and whether torch can use it; asked for without torch."""

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
    """The C++ compiler: CXX, else g++, else clang++; None when it is not on this machine."""
    # CXX may name a wrapper first: `ccache g++`.
    candidates = os.environ.get("CXX", "").split()[::-1] or ["g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def missing_requirement() -> str | None:
    """Reason why nothing can be compiled on this machine, and what to do about it; None where it can."""
    if find_compiler() is None:
        return "no C++ compiler (CXX, g++, clang++) is on this machine; Debian and Ubuntu: apt install g++"
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    if PLAIN_PATH.fullmatch(torch.origin) is None:
        return f"a compiler cannot read torch's headers below {Path(torch.origin).parent}; install in a plain path"
    return None


@functools.cache
def compiler_version(path: str) -> str:
    """The first line of `<compiler> --version`."""
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
