"""Compilation of exported programs to packages, in child processes that run in parallel on the machine's cores.

The training process does not import the compiler, which would take 200 MB and delay signals. If the training process
ends for any reason, the child's process group is killed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.compiled import one_unit
from rlcore.compiled.toolchain import PLAIN_PATH, find_compiler
from rlcore.errors import CompilationError
from rlcore.system.devices import cores
from rlcore.system.lifeline import import_path

if TYPE_CHECKING:
    from torch.fx import GraphModule

# Run a command; when standard input is closed (the parent has ended), kill the whole process group. A shell does this
# because Python cannot react while it imports torch.
KILLED_WITH_PARENT = 'exec 3<&0; (cat <&3 >/dev/null; kill -KILL 0) & exec "$@" </dev/null 3<&-'
WIDE, SLOW = 16, {"truediv", "sqrt", "rsqrt", "pow"}  # elements; operations that take a dozen cycles or more
ERROR = re.compile(r"[\w.]*(Error|Exception): ")  # the line of a traceback that names the exception
BUILD_LIMIT = 900.0  # seconds; a build takes 15 s, and 150 s on a machine whose load is ten times its cores
log = logging.getLogger(__name__)


def switches() -> list[Any]:
    """Return the settings of this process that affect code generation; the child process uses the same ones."""
    return [torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]


def compile_programs(work: Path, programs: Sequence[tuple[GraphModule, Sequence[Tensor]]]) -> list[bytes]:
    """Compile traced functions for their example inputs in an empty folder, and return the packages.

    Raises CompilationError if one of them cannot be compiled.
    """
    if PLAIN_PATH.fullmatch(str(work)) is None:  # torch passes paths to the compiler without quotes
        with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
            return compile_programs(Path(elsewhere), programs)
    places = [work / str(number) for number in range(len(programs))]
    for place, (graph, example) in zip(places, programs, strict=True):
        place.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(graph, tuple(example)), place / "program.pt2")
    run_compiler(work, places)
    return [(place / "package.pt2").read_bytes() for place in places]


def _environment(work: Path) -> dict[str, str]:
    """Return the child's environment variables: without Inductor settings of the user, and with caches in `work`."""
    private = ("TORCHINDUCTOR_", "AOT_INDUCTOR_", "AOTINDUCTOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(private)} | {
        "PYTHONPATH": import_path(),
        "CXX": find_compiler() or "",
        "TMPDIR": str(work),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Otherwise the compiler detects instruction sets by running programs with a time limit. On a busy machine the
        # result can vary, and a package that is built again would then compute other bits.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
    }


def run_compiler(work: Path, places: Sequence[Path]) -> None:
    """Compile program.pt2 to package.pt2 in each folder, in child processes that end with this call or this process.

    A first child writes C++ and ends before g++ compiles it, so that both do not need memory at the same time.
    """
    _generate(work, places, as_one=True)
    there = [(place / "package.pt2").exists() or one_unit.finish(place, partial(_run, work)) for place in places]
    if left := [place for place, done in zip(places, there, strict=True) if not done]:
        _generate(work, left, as_one=False)


def _generate(work: Path, places: Sequence[Path], as_one: bool) -> None:
    """Generate the packages in a child process.

    If `as_one` is True, the child writes one translation unit per package for the C++ compiler, if this is supported.
    """
    settings = json.dumps([as_one, *switches()])
    code, output = _run(work, [sys.executable, "-P", "-m", "rlcore.compiled.compiler", settings, *map(str, places)])
    if code:
        lines = output.splitlines() or [f"exit code {code}"]
        log.error("output of the process that compiles:\n%s", "\n".join(lines))
        reason = next((line for line in lines if "error:" in line or ERROR.match(line)), lines[-1])
        raise CompilationError(f"compilation failed ({reason.strip()[:300]}); check the C++ compiler")


def _run(work: Path, words: Sequence[str], folder: Path | None = None) -> tuple[int, str]:
    """Run a command and return its exit code and output; its process group is killed when this process ends."""
    with open(work / "output", "w+b") as output:
        child = subprocess.Popen(
            ["sh", "-c", KILLED_WITH_PARENT, "sh", *words],
            cwd=folder,
            stdin=subprocess.PIPE,  # never written to
            stdout=output,
            stderr=output,
            env=_environment(work),
            start_new_session=True,
        )
        try:
            code = child.wait(BUILD_LIMIT)
        except subprocess.TimeoutExpired:
            raise CompilationError(f"the C++ compiler did not finish in {BUILD_LIMIT:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the shell's cat, and compilers of a child that has died
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def main(settings: list[Any], places: Sequence[Path]) -> int:
    """Compile all programs in this child process, which imports the compiler once.

    Returns the exit code: 1 if a program failed, else 0. With `as_one`, translation units are written, not packages.
    """
    as_one, threads, precision, deterministic = settings
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic)
    # Imported in this child only, because it takes seconds, and before the fork of a process for each program.
    from torch._inductor import compile_fx, config, cpu_vec_isa, package  # noqa: F401

    # Precompiled headers would stay in /tmp forever; data for debuggers and profilers takes a tenth of the build time.
    for switch in ("precompile_headers", "enable_line_tables", "enable_frame_pointer"):
        if hasattr(config.aot_inductor, switch):
            setattr(config.aot_inductor, switch, False)
    cpu_vec_isa.pick_vec_isa()  # queries the compiler once, and caches the result for all forked processes
    _allocate_no_second_name()
    _keep_what_a_loop_returns()
    _spread_what_is_computed()
    return int(not _in_children(places, as_one))


def _allocate_no_second_name() -> None:
    """Keep Inductor from allocating a buffer again that a loop has written to.

    A tensor that the loop writes to gets another name after the loop. If a kernel then reuses that tensor's memory for
    its result, torch 2.13 declares the name a second time, and the C++ compiler rejects the code.
    """
    from torch._inductor import ir  # imported in the compiler process only (see `main`)
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen  # imported in the compiler process only

    plain = PythonWrapperCodegen.codegen_allocation

    def codegen_allocation(self: Any, buffer: Any) -> None:
        if not isinstance(buffer, ir.MutationOutput):
            plain(self, buffer)

    PythonWrapperCodegen.codegen_allocation = codegen_allocation


def _keep_what_a_loop_returns() -> None:
    """Keep Inductor from reusing the memory of a loop's initial value that the loop returns unchanged.

    The result of the loop is then another name for that memory. torch 2.13 considers the initial value unused after the
    loop and writes other results to its memory. A scan can return its carry unchanged. It always does so with the
    gradient of a parameter that no step reads: the result is the zero tensor with which the loop began.
    """
    from torch._inductor import ir  # imported in the compiler process only (see `main`)
    from torch._inductor.virtualized import V  # imported in the compiler process only

    plain = ir.WhileLoop.create.__func__

    def create(cls: Any, cond_fn: Any, body_fn: Any, carried_inputs: Any, *more: Any) -> Any:
        outputs = plain(cls, cond_fn, body_fn, carried_inputs, *more)
        if loop := next((part.inputs[0] for part in outputs if isinstance(part, ir.MultiOutput)), None):
            given, ends = [*body_fn.graph.graph_inputs], body_fn.graph.graph_outputs
            began = [*loop.carried_inputs, *loop.additional_inputs]
            used: Any = [node.args[1] for node in V.graph.current_node.users]
            for index in used:
                after, seen = index, set[int]()
                # A step may also return one carried value at the position of another: follow it to its initial value.
                while after < len(ends) and after not in seen and (name := ends[after].get_name()) in given:
                    seen.add(after)
                    after = given.index(name)
                    V.graph.never_reuse_buffers |= {began[after].get_name(), outputs[index].get_name()}
        return outputs

    ir.WhileLoop.create = classmethod(create)


def _spread_what_is_computed() -> None:
    """Keep Inductor from computing a broadcast value again for every 16 elements of a loop.

    Examples are the roots and quotients of a norm's statistics, and the powers in Adam's bias correction. A step of
    Adam over 136,000 parameters took 0.29 ms if they were computed again, and 0.06 ms if not.
    """
    from torch._inductor import ir  # imported in the compiler process only (see `main`)

    plain = ir.StorageBox.mark_reuse

    def mark_reuse(self: Any, users: int, **how: Any) -> None:
        plain(self, users, **how)
        wide = users >= WIDE and isinstance(self.data, ir.Pointwise)
        if wide and not SLOW.isdisjoint(self.data.inner_fn_opcount().used_ops):
            self.realize()

    ir.StorageBox.mark_reuse = mark_reuse


def _in_children(places: Sequence[Path], as_one: bool) -> bool:
    """Compile each program in a process forked from this one; return False if one failed."""
    running, most = 0, max(1, cores() // 2)  # each takes 250 MB
    for place in places:
        if running == most:
            if os.wait()[1]:
                return False
            running -= 1
        if os.fork() == 0:
            _compile_one(place, as_one)
        running += 1
    return not any([os.wait()[1] for _ in range(running)])


def _compile_one(place: Path, as_one: bool) -> None:
    """Compile one program and end this process; with `as_one`, write one translation unit if this is supported."""
    code = 1
    try:
        if as_one:
            one_unit.install(place)
        from torch._inductor import aoti_compile_and_package  # imported in the compiler process only (see `main`)

        program = torch.export.load(place / "program.pt2")
        aoti_compile_and_package(program, package_path=str(place / "package.pt2"))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
