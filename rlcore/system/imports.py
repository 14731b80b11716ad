"""Faster imports of large libraries. The import of this module loads only the standard library."""

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
    """Context manager for the import of `module`, which excludes its objects from garbage collection.

    A large module creates hundreds of thousands of objects that are never freed. Python would check them repeatedly
    during the import and again at exit, which takes up to a third of the CPU time of a short process.
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
    """Import modules in a thread, while the main thread waits for another process.

    Code that needs one of the modules earlier waits for it. Errors are ignored here and raised by the later import. The
    process does not exit before the imports are finished, because Python cannot exit safely while an extension loads.
    """

    def load() -> None:
        for module in modules:
            with suppress(Exception), large_imports(module):
                import_module(module)

    if not sys.modules.keys() >= set(modules):
        threading.Thread(target=load, name="imports").start()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Context manager to import lightning_fabric without torch's compiler, which takes as long to import as torch.

    Fabric needs only one class of it, to detect compiled modules. Code that compiles imports the real compiler later.
    """
    import torch  # noqa: F401 - first, because torch must not use the stand-in during its own import

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
    """Stand-in for torch's class of that name; `isinstance` is always False until the real compiler is imported."""
