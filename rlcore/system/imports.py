"""Faster imports of large libraries, such as torch. This module imports only the standard library."""

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
    """Context manager in which a large module is imported; objects created in it are never garbage-collected.

    A large library creates hundreds of thousands of objects that exist until the process ends. Python's garbage
    collector would examine them repeatedly during the import and again at exit, which takes up to a third of the CPU
    time of a short process.

    Args:
        module: name of the module; if it is imported already, nothing is changed.
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
    """Start to import modules in another thread, for example while the main thread waits for another process.

    An import statement for one of the modules waits until it is imported. Errors in the other thread are ignored; the
    import statement raises them again. The process does not exit before all imports are finished, because Python cannot
    exit safely while an extension module is being loaded.
    """

    def load() -> None:
        for module in modules:
            with suppress(Exception), large_imports(module):
                import_module(module)

    if not sys.modules.keys() >= set(modules):
        threading.Thread(target=load, name="imports").start()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Context manager in which lightning_fabric can be imported without an import of torch's compiler.

    The import of the compiler takes as long as that of torch. Fabric uses only one class of the compiler, to detect
    compiled modules; a substitute is defined for it. If the compiler is needed later, it is imported as usual.
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
    """Substitute for the class `torch._dynamo.OptimizedModule`.

    `isinstance` returns False until torch's compiler is imported, and from then on the result for torch's class.
    """
