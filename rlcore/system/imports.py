"""Imports of large libraries. Imports nothing heavy itself."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


@contextmanager
def large_imports(module: str) -> Iterator[None]:
    """Import `module` inside the `with` without garbage collection, and leave its objects out of every later one.

    Modules make hundreds of thousands of objects, and all of them stay. Python looks through them again and again while
    there are more, and once more at its end: up to a third of the processor time of a short process.
    """
    if module in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_soon(*modules: str) -> None:
    """Import modules in a thread, while this one waits for another process; who needs one before waits for it.

    What is wrong with one is told where it is needed. The process ends when they are there: Python does not end well in
    the middle of an extension's start.
    """

    def load() -> None:
        for module in modules:
            with suppress(Exception), large_imports(module):
                import_module(module)

    if not sys.modules.keys() >= set(modules):
        threading.Thread(target=load, name="imports").start()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Import lightning_fabric without torch's compiler, whose import takes as long as that of torch itself.

    Fabric wants one class of it, to recognise compiled modules. Whoever compiles imports the compiler then.
    """
    import torch  # noqa: F401 - first: torch itself must not meet the stand-in while it starts

    if COMPILER in sys.modules:
        yield
        return
    stand_in = sys.modules[COMPILER] = ModuleType(COMPILER)
    vars(stand_in)["OptimizedModule"] = _OptimizedModule
    try:
        yield
    finally:
        del sys.modules[COMPILER]


class _CompiledType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        real = getattr(sys.modules.get(COMPILER), "OptimizedModule", cls)
        return real is not cls and isinstance(instance, real)


class _OptimizedModule(metaclass=_CompiledType):
    """Has the instances of torch's class of that name: none, while the compiler is not there."""
