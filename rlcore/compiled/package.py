"""Ahead-of-time compilation on the CPU: a traced function becomes machine code once, and is loaded in 10 ms from then.

A package is kept under the SHA-256 of all that decides its numbers: the traced code with its constants, the shapes,
torch, processor, compiler, threads. Its own SHA-256 is in its file's name, so a damaged file is found and built again;
likewise the note beside it, which tells which package a function has before it is traced.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.compiled.compiler import compile_programs, switches
from rlcore.compiled.toolchain import compiler_version, find_compiler
from rlcore.errors import CompilationError
from rlcore.system.devices import processor
from rlcore.system.durable import make_directory, sync_directory, write_synced

if TYPE_CHECKING:
    from torch.fx import GraphModule

FORMAT = 4  # raise it when the same graph must be compiled in another way
TRIALS = 5  # of CrossQ's step one in ten meets a kink
Compiled = Callable[[list[Tensor]], list[Tensor]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TracedFunction:
    """A function as operations on tensors.

    Attributes:
        what: it is, for messages.
        graph: the operations.
        example: its inputs.
        name: under which it is found before it is traced; None = it is not.
        notes: kept under that name.
        memory: places of inputs that come back, changed, as the outputs of the same places: what an optimizer's rule
            remembers.
    """

    what: str
    graph: GraphModule
    example: Sequence[Tensor]
    name: str | None = None
    notes: Any = None
    memory: Sequence[int] = ()

    @functools.cached_property
    def key(self) -> str:
        """SHA-256 of all that decides the numbers its package gives."""
        return content_key(self.graph, self.example)


def build(functions: Sequence[TracedFunction]) -> list[Compiled]:
    """Return machine code for traced functions, from the cache or built now.

    Args:
        functions: All are built together; a fault of one is an error of the call.

    Returns:
        For each of them a function: list of inputs -> list of outputs.

    Raises:
        CompilationError: If the compiler failed, what it made computes something else, or the cache cannot be written.
    """
    folder, wanted = cache_folder(), {each.key: each for each in functions}
    try:
        make_directory(folder)
        with ExitStack() as locks:
            for key in sorted(wanted):
                locks.enter_context(_lock(folder / f"{key}.lock"))
            packages = {key: found for key in wanted if (found := find(folder, key)) is not None}
            if missing := {key: each for key, each in wanted.items() if key not in packages}:
                names = ", ".join(dict.fromkeys(each.what for each in missing.values()))
                log.info("compiling %s, once for this configuration, into %s", names, folder)
                packages |= _build(folder, missing)
    except OSError as error:
        raise CompilationError(
            f"{folder}: compiled functions cannot be kept there ({error.strerror or error}); "
            "name another folder in SHEPHERD_CACHE"
        ) from error
    for each in functions:
        if each.name is not None:
            entry = json.dumps({"package": each.key, "notes": each.notes}).encode()
            with suppress(OSError):  # the next start traces again
                _write_whole(folder, _name(each.name, entry, "json"), entry)
    return [load(packages[each.key]) for each in functions]


def cache_folder() -> Path:
    """Folder in which packages are kept: SHEPHERD_CACHE, else `.shepherd/compiled` in the working directory."""
    return Path(os.environ.get("SHEPHERD_CACHE") or Path(".shepherd", "compiled")).absolute()


def content_key(graph: GraphModule, example: Sequence[Tensor]) -> str:
    """SHA-256 of all that decides the numbers a package gives."""
    parts = {
        "code": {name: part.code for name, part in graph.named_modules() if isinstance(part, torch.fx.GraphModule)},
        "constants": {name: [shape(value), _digest(value)] for name, value in constants(graph).items()},
        "inputs": [shape(value) for value in example],
        **machine(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def constants(graph: GraphModule) -> dict[str, Tensor]:
    """Tensors that a graph holds itself, by name."""
    held = {
        f"{place}.{name}" if place else name: value
        for place, part in graph.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }
    return held | dict(graph.named_buffers())


def machine() -> dict[str, Any]:
    """All that decides the numbers of every package made here."""
    compiler = find_compiler()
    return {
        "format": FORMAT,
        "torch": [torch.__version__, torch.backends.cpu.get_cpu_capability(), *switches()],
        "compiler": compiler and compiler_version(compiler),
        "processor": processor(),
    }


def shape(tensor: Tensor) -> list[Any]:
    """Shape, strides and dtype."""
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype)]


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One builder at a time for each key: the second one finds the package of the first."""
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def find(folder: Path, key: str, kind: str = "pt2") -> bytes | None:
    """The package, or the note (`json`), kept under a key, if it is whole; a damaged one is removed, with a warning."""
    for path in sorted(folder.glob(f"{key}.*.{kind}")):
        content = path.read_bytes()
        if path.name == _name(key, content, kind):
            return content
        log.warning("%s is damaged; it is built again", path)
        path.unlink(missing_ok=True)
    return None


def _name(key: str, content: bytes, kind: str = "pt2") -> str:
    return f"{key}.{hashlib.sha256(content).hexdigest()}.{kind}"


def _build(folder: Path, missing: Mapping[str, TracedFunction]) -> dict[str, bytes]:
    for key in missing:  # what a killed process left: we hold the lock
        for leftover in folder.glob(f"{key}.building-*"):
            shutil.rmtree(leftover, ignore_errors=True)
    first = next(iter(missing))
    with tempfile.TemporaryDirectory(prefix=f"{first}.building-", dir=folder, ignore_cleanup_errors=True) as name:
        made = compile_programs(Path(name), [(each.graph, each.example) for each in missing.values()])
    packages = dict(zip(missing, made, strict=True))
    faults = list[CompilationError]()
    for key, package in packages.items():
        try:
            check(load(package), missing[key])
        except CompilationError as fault:
            fault.key = key
            faults.append(fault)
        else:
            _write_whole(folder, _name(key, package), package)
    if faults:
        raise faults[0]
    return packages


def _write_whole(folder: Path, name: str, content: bytes) -> None:
    temporary = folder / f".{name}.tmp-{os.getpid()}"
    write_synced(temporary, content)
    os.replace(temporary, folder / name)
    sync_directory(folder)


@torch.no_grad()
def check(run: Compiled, traced: TracedFunction) -> None:
    """Refuse machine code that computes something else than what was traced: compilers have faults.

    Where it is off, it is held against other numbers close by. At a kink, as that of a rectifier, rounding alone may
    decide on which side a number lies, and a gradient has a sample more or less; code that is wrong is wrong for all.

    Args:
        run: the machine code.
        traced: the function.

    Raises:
        CompilationError: some number is further off than rounding takes it, by the size of the largest of its tensor.
    """
    off, rng = list[float](), torch.Generator().manual_seed(0)
    for trial in range(TRIALS):
        example = [_move(value, rng) if trial else value for value in traced.example]
        if (found := _measure(run, traced, example)) is None:
            return
        off.append(found)
    raise CompilationError(f"what was compiled is wrong by {min(off):.2g}, a fault of the compiler")


def _move(value: Tensor, rng: torch.Generator) -> Tensor:
    """Numbers a thousandth off, each its own way; those of other types, and single ones, as they are."""
    if not value.is_floating_point() or not value.dim():
        return value
    return value * (1 + 1e-3 * torch.randn(value.shape, generator=rng, dtype=value.dtype))


def _measure(run: Compiled, traced: TracedFunction, example: list[Tensor]) -> float | None:
    """Error of the machine code on these inputs, where that is more than rounding; else None.

    A rule that remembers nothing divides every gradient by its own size, so that one which is zero but for rounding
    moves its parameter by a whole learning rate, in a direction that another order of the same sums turns round. So
    its memory is, everywhere, the mean of what a first step leaves there: then steps are as exact as gradients.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = traced.graph(*example)
        if traced.memory:
            for place in traced.memory:
                example[place] = torch.full_like(example[place], expected[place].mean().item())
            expected = traced.graph(*example)
    for actual, wanted in zip(run(example), expected, strict=True):
        largest = (
            wanted.double().abs().max().item() if wanted.dim() and wanted.numel() else 1.0
        )  # a mean may cancel out
        if not torch.allclose(actual, wanted, rtol=1e-3, atol=1e-4 * min(max(0.1, largest), 1.0), equal_nan=True):
            return (actual - wanted).abs().max().item()
    return None


_loaded: dict[str, Compiled] = {}  # by the SHA-256 of the package


def load(package: bytes) -> Compiled:
    """A package as a function, loaded from memory, once in a process.

    torch's own loaders unpack into a folder of /tmp and remove it when the interpreter shuts down in good order, which
    a trainer never does.
    """
    digest = hashlib.sha256(package).hexdigest()
    if digest not in _loaded:
        _loaded[digest] = _load(package)
    return _loaded[digest]


def _load(package: bytes) -> Compiled:
    runner = getattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu", None)  # pyright: ignore[reportPrivateUsage]
    if runner is None or not hasattr(os, "memfd_create"):
        from torch._inductor import aoti_load_package  # the compiler, which takes seconds to import

        model = aoti_load_package(io.BytesIO(package))
        return lambda inputs: list(model(*inputs))
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        code = archive.read(name)
    descriptor = os.memfd_create("shepherd-package")  # never closed: to the dynamic linker a path is a library
    with open(descriptor, "wb", closefd=False) as handle:
        handle.write(code)
    return runner(f"/proc/self/fd/{descriptor}", 1).run
