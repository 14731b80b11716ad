"""Ahead-of-time compilation on the CPU: a traced function becomes machine code once, and is loaded in 10 ms from then.

A package is kept under the SHA-256 of all that decides its numbers: the traced code with its constants, the shapes,
torch, processor, compiler, threads. Its own SHA-256 is in its file's name, so a damaged file is found and built again;
likewise the note beside it, which tells which package a function has before it is traced.

The compiler runs in a child process of its own (`python -m rlcore.optim.package`): nothing of it stays in the process
that trains, and when that one ends, in whatever way, the child's whole process group goes with it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import inspect
import io
import json
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore import plugins
from rlcore.errors import RunError
from rlcore.system.durable import make_directory, sync_directory, write_synced
from rlcore.system.lifeline import import_path

if TYPE_CHECKING:
    from torch.fx import GraphModule

FORMAT = 1  # raise it when the same graph must be compiled in another way
PLAIN_PATH = re.compile(r"[\w/.+-]+", re.ASCII)
# Run a command; when standard input ends (the parent is gone), kill the whole process group. A shell does it because
# Python notices nothing while it imports torch.
KILLED_WITH_PARENT = 'exec 3<&0; (cat <&3 >/dev/null; kill -KILL 0) & exec "$@" </dev/null 3<&-'
BUILD_LIMIT = 900.0  # seconds; a build takes 15, on a machine with ten times the work for its cores 150
Compiled = Callable[[list[Tensor]], list[Tensor]]
log = logging.getLogger(__name__)


def clock() -> tuple[float, float]:
    """Seconds of a clock and of this process's work, without those spent here: a first build is no training."""
    return time.perf_counter() - _spent[0], time.process_time() - _spent[1]


_spent = [0.0, 0.0]


@contextmanager
def _not_training() -> Iterator[None]:
    began = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        _spent[:] = (
            _spent[0] + time.perf_counter() - began[0],
            _spent[1] + time.process_time() - began[1],
        )


def trace(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor]) -> GraphModule:
    """The operations that a function performs on tensors of the example's shapes, its gradients among them."""
    with _not_training(), warnings.catch_warnings():
        from torch.fx.experimental.proxy_tensor import make_fx  # 30 ms, for compiled runs alone

        warnings.simplefilter("ignore")
        return make_fx(function)(*example)


@_not_training()
def made_once(
    what: str, function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor], facts: Facts
) -> tuple[Compiled, Any]:
    """Machine code for a function of tensors: list of inputs -> list of outputs; traced where the cache has it not.

    Args:
        what: it is, for messages.
        function: of tensors; nothing else that it reads may change.
        example: its inputs: only tensors of these shapes, types and contiguous layout may be handed in.
        facts: all beside the code of this program and of plugins that decides what tracing finds.

    Returns:
        The machine code, and what `facts.notes()` gave after the function was traced.

    Raises:
        RunError: the compiler failed, or the cache cannot be written.
        ValueError: the function holds a tensor of `facts.plain`.
    """
    folder, names = cache_folder(), facts.names(example)
    for name in names:
        if (known := _known(folder, name)) is not None:
            return known
    graph = trace(function, example)
    if any(isinstance(value, torch.nn.Parameter) for value in (*vars(graph).values(), *graph.parameters())):
        raise RunError(f"{what} reads parameters that are none of its inputs: an optimizer's `uses` names their module")
    constants = {id(value) for value in _constants(graph).values()}
    for attribute in (name for name, value in facts.plain.items() if id(value) in constants):
        raise ValueError(
            f"{what} reads the tensor {attribute!r}, which is no buffer: self.register_buffer makes it one"
        )
    code, notes, key = compiled(graph, example, what), facts.notes(), content_key(graph, example)
    if names and find(folder, key) is not None:
        entry = json.dumps({"package": key, "notes": notes}).encode()
        with suppress(OSError):  # the next start traces again
            _write_whole(folder, _name(names[1 if _constants(graph) else 0], entry, "json"), entry)
    return code, notes


def compiled(graph: GraphModule, example: Sequence[Tensor], what: str = "a function") -> Compiled:
    """Machine code for a traced function, from the cache or built now: list of inputs -> list of outputs.

    A RunError where the compiler failed or the cache cannot be written.
    """
    folder = cache_folder()
    key = content_key(graph, example)
    try:
        make_directory(folder)
        with _locked(folder / f"{key}.lock"):
            package = find(folder, key)
            if package is None:
                log.info("compiling %s, once for this configuration, into %s", what, folder)
                package = _build(folder, key, graph, example)
    except OSError as error:
        raise RunError(
            f"{folder}: the compiled step cannot be kept there ({error.strerror or error}); "
            "name another folder in SHEPHERD_CACHE, or train with algo.compile=false"
        ) from error
    return _load(package)


@dataclass(frozen=True)
class Facts:
    """What decides the code of a function before it is traced: then a start neither traces nor imports the compiler.

    Attributes:
        config: JSON: the algorithm's config, the environment's spec, what else the function is made from.
        seed: of the run; it counts where a function holds constants that may have been drawn.
        notes: what to remember of the trace, as the names of its outputs; JSON.
        made_of: the function or class that is traced; its file counts where it is none of this program's.
        plain: name -> tensor that may be another one later, so that a function which holds it is refused.
    """

    config: Any
    seed: int
    notes: Callable[[], Any]
    made_of: Any
    plain: Mapping[str, Tensor] = field(default_factory=dict)

    def names(self, example: Sequence[Tensor]) -> list[str]:
        """Under which a function of these inputs is known, for any seed and for this one; none where it has no file."""
        source = inspect.getsourcefile(inspect.unwrap(self.made_of)) if inspect.getmodule(self.made_of) else None
        if source is None or not Path(source).is_file():
            return []
        given = {
            "facts": self.config,
            "code": CODE,
            "source": hashlib.sha256(Path(source).read_bytes()).hexdigest(),
            "plugins": plugins.hashes(),
            "inputs": [_shape(value) for value in example],
            **_machine(),
        }
        texts = (json.dumps([given, seed], sort_keys=True, default=str) for seed in (None, self.seed))
        return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def code_digest() -> str:
    """SHA-256 of every source file of rlcore as it is now."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


CODE = code_digest()  # at the import: what is edited later does not run in this process


def _known(folder: Path, name: str) -> tuple[Compiled, Any] | None:
    """The function that an earlier start traced, where its package is whole."""
    try:
        entry = json.loads(find(folder, name, "json") or "{}")
        package = find(folder, entry["package"]) if entry else None
    except OSError:
        return None
    return None if package is None else (_load(package), entry["notes"])


def cache_folder() -> Path:
    """Where packages are kept: SHEPHERD_CACHE, else `.shepherd/compiled` in the working directory."""
    return Path(os.environ.get("SHEPHERD_CACHE") or Path(".shepherd", "compiled")).absolute()


def find_compiler() -> str | None:
    """The C++ compiler: CXX, else g++, else clang++; None when it is not on this machine."""
    # CXX may name a wrapper first: `ccache g++`.
    candidates = os.environ.get("CXX", "").split()[::-1] or ["g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def missing_requirement() -> str | None:
    """Why nothing can be compiled on this machine, and what to do about it; None where it can."""
    if find_compiler() is None:
        return "no C++ compiler (CXX, g++, clang++) is on this machine; Debian and Ubuntu: apt install g++"
    if PLAIN_PATH.fullmatch(torch.__file__) is None:
        return f"a compiler cannot read torch's headers below {Path(torch.__file__).parent}; install in a plain path"
    return None


@functools.cache
def compiler_version(path: str) -> str:
    """The first line of `<compiler> --version`."""
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]


@functools.cache
def processor() -> dict[str, str]:
    """The processor's model and instruction sets, which decide what code is generated, under Linux's names."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {"model name": platform.processor() or platform.machine()}
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    first = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return {name: first[name] for name in wanted if name in first}


def content_key(graph: GraphModule, example: Sequence[Tensor]) -> str:
    """SHA-256 of all that decides the numbers a package gives."""
    parts = {
        "code": graph.code,
        "constants": {name: [_shape(value), _digest(value)] for name, value in _constants(graph).items()},
        "inputs": [_shape(value) for value in example],
        **_machine(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _constants(graph: GraphModule) -> dict[str, Tensor]:
    held = {name: value for name, value in vars(graph).items() if isinstance(value, Tensor)}
    return held | dict(graph.named_buffers())


def _machine() -> dict[str, Any]:
    compiler = find_compiler()
    return {
        "format": FORMAT,
        "torch": [torch.__version__, torch.backends.cpu.get_cpu_capability(), *_switches()],
        "compiler": compiler and compiler_version(compiler),
        "processor": processor(),
    }


def _shape(tensor: Tensor) -> list[Any]:
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype)]


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def _switches() -> list[Any]:
    """Settings of this process that code generation depends on; the child gets the same."""
    return [torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
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


def _build(folder: Path, key: str, graph: GraphModule, example: Sequence[Tensor]) -> bytes:
    for leftover in folder.glob(f"{key}.building-*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{key}.building-", dir=folder, ignore_cleanup_errors=True) as name:
        package = _compile(Path(name), graph, example)
        _write_whole(folder, _name(key, package), package)
    return package


def _write_whole(folder: Path, name: str, content: bytes) -> None:
    temporary = folder / f".{name}.tmp-{os.getpid()}"
    write_synced(temporary, content)
    os.replace(temporary, folder / name)
    sync_directory(folder)


def _compile(work: Path, graph: GraphModule, example: Sequence[Tensor]) -> bytes:
    if PLAIN_PATH.fullmatch(str(work)) is None:  # torch hands paths to the compiler unquoted
        with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
            return _compile(Path(elsewhere), graph, example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(graph, tuple(example)), work / "program.pt2")
    _run_compiler(work)
    package = (work / "package.pt2").read_bytes()
    _check(_load(package), graph, example)
    return package


def _environment(work: Path) -> dict[str, str]:
    """The child's variables: none of the user's that change how code is generated, and caches in `work` alone."""
    private = ("TORCHINDUCTOR_", "AOT_INDUCTOR_", "AOTINDUCTOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(private)} | {
        "PYTHONPATH": import_path(),
        "CXX": find_compiler() or "",
        "TMPDIR": str(work),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Without it the compiler tries out instruction sets by running programs under a time limit: a busy machine
        # would now and then get another set, and a package built again other bits.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
    }


def _run_compiler(work: Path) -> None:
    """Let a child process turn program.pt2 into package.pt2; it never outlives this process, nor this call."""
    python = [sys.executable, "-P", "-m", "rlcore.optim.package", str(work), json.dumps(_switches())]
    with open(work / "output", "w+b") as output:
        child = subprocess.Popen(
            ["sh", "-c", KILLED_WITH_PARENT, "sh", *python],
            stdin=subprocess.PIPE,  # never written to
            stdout=output,
            stderr=output,
            env=_environment(work),
            start_new_session=True,
        )
        try:
            code = child.wait(BUILD_LIMIT)
        except subprocess.TimeoutExpired:
            raise RunError(
                f"the C++ compiler gave nothing for {BUILD_LIMIT:.0f} s; algo.compile=false does without"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the shell's cat, and compilers that a dead child has left
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
        if code:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines() or [f"exit code {code}"]
            log.error("the process that compiles said:\n%s", "\n".join(lines))
            reason = next((line for line in lines if "error:" in line), lines[-1])
            raise RunError(
                f"it could not be compiled ({reason.strip()[:300]}); "
                "mend the C++ compiler, or train with algo.compile=false"
            )


def _check(run: Compiled, graph: GraphModule, example: Sequence[Tensor]) -> None:
    """Refuse a package that computes something else than what was traced: compilers have faults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = graph(*example)
    for actual, wanted in zip(run(list(example)), expected, strict=True):
        if not torch.allclose(actual, wanted, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise RunError(
                f"what was compiled is wrong by {(actual - wanted).abs().max().item():.2g}, a fault of the "
                "compiler; train with algo.compile=false"
            )


_mapped: list[int] = []


def _load(package: bytes) -> Compiled:
    """A package as a function, loaded from memory.

    torch's own loaders unpack into a folder of /tmp and remove it when the interpreter shuts down in good order, which
    a trainer never does.
    """
    runner = getattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu", None)  # pyright: ignore[reportPrivateUsage]
    if runner is None or not hasattr(os, "memfd_create"):
        from torch._inductor import aoti_load_package  # the compiler, which takes seconds to import

        model = aoti_load_package(io.BytesIO(package))
        return lambda inputs: list(model(*inputs))
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        code = archive.read(name)
    descriptor = os.memfd_create("minibatch-step")
    _mapped.append(descriptor)  # never closed: the dynamic linker takes the same path for the same library
    with open(descriptor, "wb", closefd=False) as handle:
        handle.write(code)
    return runner(f"/proc/self/fd/{descriptor}", 1).run


def main(work: Path, switches: list[Any]) -> None:
    """The child: compile `program.pt2` of a folder into `package.pt2`."""
    torch.set_num_threads(switches[0])
    torch.set_float32_matmul_precision(switches[1])
    torch.use_deterministic_algorithms(switches[2])
    program = torch.export.load(work / "program.pt2")
    from torch._inductor import aoti_compile_and_package, config  # in the child alone: it takes seconds to import

    # Headers would be kept in /tmp for ever; what debuggers and profilers read takes a tenth of the time.
    for switch in ("precompile_headers", "enable_line_tables", "enable_frame_pointer"):
        if hasattr(config.aot_inductor, switch):
            setattr(config.aot_inductor, switch, False)
    aoti_compile_and_package(program, package_path=str(work / "package.pt2"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
