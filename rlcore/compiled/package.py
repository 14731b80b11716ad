"""Cache of compiled functions on the CPU: a traced function is compiled once and later loaded in 10 ms.

A package is a file with the machine code of one function. Its cache key is the SHA-256 of everything that determines
the results of the function: traced operations, constants, shapes, torch version, CPU, compiler and number of threads.
The file name contains the key and the SHA-256 of the content, so that a damaged file is detected and built again.

A note is a JSON file that is named in the same way. Its key is computed before tracing (`machine_code.Facts`), and it
contains the key of the package. If there is a note, the function need not be traced.
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
import stat
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
from rlcore.compiled.when_to_compile import compiler_version, find_compiler
from rlcore.errors import CompilationError
from rlcore.system.devices import processor
from rlcore.system.durable import make_directory, sync_directory, write_synced

if TYPE_CHECKING:
    from torch.fx import GraphModule

FORMAT = 4  # increase it when the same graph is compiled differently
TRIALS = 5  # one in ten of CrossQ's steps is evaluated at a kink (see `check`)
Compiled = Callable[[list[Tensor]], list[Tensor]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TracedFunction:
    """Traced function to compile.

    Attributes:
        what: description of the function for messages.
        graph: traced operations.
        example: example inputs, which define the supported shapes and dtypes.
        name: cache key that is known before tracing (`machine_code.Facts.names`); None if later processes must trace
            the function to find its package.
        notes: JSON value that is stored under `name`, such as the names of the outputs.
        memory: indices of inputs that contain optimizer state; the outputs with these indices are its new values.
    """

    what: str
    graph: GraphModule
    example: Sequence[Tensor]
    name: str | None = None
    notes: Any = None
    memory: Sequence[int] = ()

    @functools.cached_property
    def key(self) -> str:
        """Cache key of the package, the result of `content_key`."""
        return content_key(self.graph, self.example)


def build(functions: Sequence[TracedFunction]) -> list[Compiled]:
    """Return machine code for traced functions, from the cache or compiled now.

    Args:
        functions: functions whose missing packages are compiled in parallel; one failure makes the call fail.

    Returns:
        For each function its machine code as a function: list of inputs -> list of outputs.

    Raises:
        CompilationError: if the compiler fails, the machine code computes wrong results, or the cache cannot be
            written.
    """
    folder, wanted = cache_folder(), {each.key: each for each in functions}
    try:
        _make_own(folder)
        with ExitStack() as locks:
            for key in sorted(wanted):
                locks.enter_context(_lock(folder / f"{key}.lock"))
            packages = {key: found for key in wanted if (found := find(folder, key)) is not None}
            if missing := {key: each for key, each in wanted.items() if key not in packages}:
                names = ", ".join(dict.fromkeys(each.what for each in missing.values()))
                log.info("compiling %s into %s (once for this configuration; may take a minute)", names, folder)
                packages |= _build(folder, missing)
    except OSError as error:
        raise CompilationError(
            f"{folder}: compiled functions cannot be stored there ({error.strerror or error}); "
            "set SHEPHERD_CACHE to another folder"
        ) from error
    for each in functions:
        if each.name is not None:
            entry = json.dumps({"package": each.key, "notes": each.notes}).encode()
            with suppress(OSError):  # without the note, the next start traces the function again
                _write_whole(folder, _name(each.name, entry, "json"), entry)
    return [load(packages[each.key]) for each in functions]


def cache_folder() -> Path:
    """Return the folder for packages and notes: SHEPHERD_CACHE, or `.shepherd/compiled` in the working directory.

    If another user can write to this folder, a folder in the home directory is returned instead, because this process
    executes the code in the packages.
    """
    chosen = Path(os.environ.get("SHEPHERD_CACHE") or Path(".shepherd", "compiled")).absolute()
    return _own_instead_of(chosen) if _unsafe(chosen) else chosen


@functools.cache
def _own_instead_of(folder: Path) -> Path:
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "shepherd", "compiled").absolute()
    log.warning(
        "%s %s, so no compiled code in it is run; compiled functions are kept in %s. To choose another folder of "
        "yours, set SHEPHERD_CACHE",
        folder,
        _unsafe(folder),
        own,
    )
    return own


def kernels_folder() -> Path:
    """Return the folder in `cache_folder` in which torch's compiler caches GPU kernels; only its owner has access."""
    kernels = cache_folder() / "kernels"
    _make_own(kernels.parent)
    if _unsafe(kernels):
        aside = kernels.with_name(f"kernels-unsafe-{os.getpid()}")
        with suppress(FileNotFoundError):  # another process does the same
            kernels.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    _make_own(kernels)
    return kernels


def _make_own(folder: Path) -> None:
    """Create a folder to which only its owner has access, with any umask; an existing folder is not changed."""
    make_directory(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _unsafe(file: Path | int) -> str:
    """Return why a file or folder is not safe from changes by other users except root; "" if it is safe."""
    try:
        status = os.stat(file)
    except OSError:  # it does not exist yet
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return "can be written by other users" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def content_key(graph: GraphModule, example: Sequence[Tensor]) -> str:
    """Return the cache key of a traced function: the SHA-256 of everything that determines its results.

    These are the traced code, its constants, the layout of the inputs, and the result of `machine`.
    """
    parts = {
        "code": {name: part.code for name, part in graph.named_modules() if isinstance(part, torch.fx.GraphModule)},
        "constants": {name: [shape(value), _digest(value)] for name, value in constants(graph).items()},
        "inputs": [shape(value) for value in example],
        **machine(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def constants(graph: GraphModule) -> dict[str, Tensor]:
    """Return the tensors that are constants in a traced graph, by name."""
    tensors = {
        f"{place}.{name}" if place else name: value
        for place, part in graph.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    }
    return tensors | dict(graph.named_buffers())


def machine() -> dict[str, Any]:
    """Return the properties of machine and process that affect compiled code: CPU, torch, its settings, compiler."""
    compiler = find_compiler()
    return {
        "format": FORMAT,
        "torch": [torch.__version__, torch.backends.cpu.get_cpu_capability(), *switches()],
        "compiler": compiler and compiler_version(compiler),
        "processor": processor(),
    }


def shape(tensor: Tensor) -> list[Any]:
    """Return shape, strides and dtype of a tensor as a JSON value."""
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype)]


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Context manager that holds a lock, so that only one process at a time compiles the function with a cache key."""
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def find(folder: Path, key: str, kind: str = "pt2") -> bytes | None:
    """Return the content of the file that is stored under a cache key, or None.

    A file that is damaged, or that another user could have written, is removed, and a warning is logged.

    Args:
        folder: folder of the cache.
        key: cache key.
        kind: "pt2" for a package, "json" for a note.

    Returns:
        The content, or None.
    """
    for path in sorted(folder.glob(f"{key}.*.{kind}")):
        with open(path, "rb") as handle:
            reason, content = _unsafe(handle.fileno()), handle.read()
        if not reason and path.name == _name(key, content, kind):
            return content
        log.warning("%s %s and is built again", path, reason or "is damaged")
        path.unlink(missing_ok=True)
    return None


def _name(key: str, content: bytes, kind: str = "pt2") -> str:
    return f"{key}.{hashlib.sha256(content).hexdigest()}.{kind}"


def _build(folder: Path, missing: Mapping[str, TracedFunction]) -> dict[str, bytes]:
    for key in missing:  # remove files of a killed process; no other process builds them, because we hold the lock
        for leftover in folder.glob(f"{key}.building-*"):
            shutil.rmtree(leftover, ignore_errors=True)
    first = next(iter(missing))
    with tempfile.TemporaryDirectory(prefix=f"{first}.building-", dir=folder, ignore_cleanup_errors=True) as name:
        contents = compile_programs(Path(name), [(each.graph, each.example) for each in missing.values()])
    packages = dict(zip(missing, contents, strict=True))
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
    temporary.chmod(0o600)  # whatever the umask is: see `find`
    os.replace(temporary, folder / name)
    sync_directory(folder)


@torch.no_grad()
def check(run: Compiled, traced: TracedFunction) -> None:
    """Check that machine code computes the same as the traced function, except for rounding.

    If the results differ, the check is repeated with slightly different inputs, up to 5 times in total (`TRIALS`).
    Results of correct code can differ for some inputs: at a discontinuity of a gradient, such as the zero of a ReLU, a
    rounding error decides which gradient is computed. The results of wrong code differ for all inputs.

    Args:
        run: the machine code.
        traced: the traced function, with the example inputs.

    Raises:
        CompilationError: if the results differ by more than rounding in all trials. Rounding is relative to the
            largest number of a tensor.
    """
    off, rng = list[float](), torch.Generator().manual_seed(0)
    for trial in range(TRIALS):
        example = [_move(value, rng) if trial else value for value in traced.example]
        if (error := _measure(run, traced, example)) is None:
            return
        off.append(error)
    raise CompilationError(
        f"the compiled code is wrong by {min(off):.2g}, which is a bug of the compiler; set algo.compile=false, or use "
        "another version of torch or of the C++ compiler"
    )


def _move(value: Tensor, rng: torch.Generator) -> Tensor:
    """Multiply each number by 1 + 0.001 x, with x from a normal distribution; integers and scalars are unchanged."""
    if not value.is_floating_point() or not value.dim():
        return value
    return value * (1 + 1e-3 * torch.randn(value.shape, generator=rng, dtype=value.dtype))


def _measure(run: Compiled, traced: TracedFunction, example: list[Tensor]) -> float | None:
    """Return the largest error of the machine code on the given inputs; None if it is not more than rounding.

    Optimizer state is not compared at its initial value. In a first step, Adam divides each gradient by its absolute
    value, so a gradient that consists of rounding errors only would change its parameter by the full learning rate.
    Each tensor of optimizer state is therefore first filled with the mean that it has after one step.
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
    """Load the content of a package as a function; later calls with the same content return the same function.

    The package is loaded from memory. torch's loader would unpack it to a folder in /tmp, which is removed only at a
    normal shutdown of the interpreter, and training processes exit without one.
    """
    digest = hashlib.sha256(package).hexdigest()
    if digest not in _loaded:
        _loaded[digest] = _load(package)
    return _loaded[digest]


def _load(package: bytes) -> Compiled:
    runner = getattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu", None)  # pyright: ignore[reportPrivateUsage]
    if runner is None or not hasattr(os, "memfd_create"):
        from torch._inductor import aoti_load_package  # torch's compiler, which takes seconds to import

        model = aoti_load_package(io.BytesIO(package))
        return lambda inputs: list(model(*inputs))
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        code = archive.read(name)
    # The descriptor is never closed, because the dynamic linker identifies a library by its path.
    descriptor = os.memfd_create("shepherd-package")
    with open(descriptor, "wb", closefd=False) as handle:
        handle.write(code)
    return runner(f"/proc/self/fd/{descriptor}", 1).run
