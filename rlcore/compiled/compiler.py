"""The C++ compiler, in a child process: programs in, packages out, side by side on the machine's cores.

Nothing of it stays in the process that trains (200 MB of imports, signals that wait), and when that one ends, in
whatever way, the child's whole process group goes with it.
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

# Run a command; when standard input ends (the parent is gone), kill the whole process group. A shell does it because
# Python notices nothing while it imports torch.
KILLED_WITH_PARENT = 'exec 3<&0; (cat <&3 >/dev/null; kill -KILL 0) & exec "$@" </dev/null 3<&-'
WIDE, SLOW = 16, {"truediv", "sqrt", "rsqrt", "pow"}  # elements; operations of a dozen cycles and more
ERROR = re.compile(r"[\w.]*(Error|Exception): ")  # the last line of a traceback; its text may have more lines
BUILD_LIMIT = 900.0  # seconds; a build takes 15, on a machine with ten times the work for its cores 150
log = logging.getLogger(__name__)


def switches() -> list[Any]:
    """Settings of this process that code generation depends on; the child gets the same."""
    return [torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]


def compile_programs(work: Path, programs: Sequence[tuple[GraphModule, Sequence[Tensor]]]) -> list[bytes]:
    """Return the packages of traced functions, compiled with examples in an empty folder; raises CompilationError."""
    if PLAIN_PATH.fullmatch(str(work)) is None:  # torch hands paths to the compiler unquoted
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


def run_compiler(work: Path, places: Sequence[Path]) -> None:
    """Turn each place's program.pt2 into package.pt2, by children that never outlive this process, nor this call.

    A first child writes C++ and ends; then g++ reads it, so that their memory is not taken at once.
    """
    _generate(work, places, as_one=True)
    there = [(place / "package.pt2").exists() or one_unit.finish(place, partial(_run, work)) for place in places]
    if left := [place for place, done in zip(places, there, strict=True) if not done]:
        _generate(work, left, as_one=False)


def _generate(work: Path, places: Sequence[Path], as_one: bool) -> None:
    """Let a child of its own make the packages; `as_one`: where it can, it leaves one unit for the C++ compiler."""
    settings = json.dumps([as_one, *switches()])
    code, said = _run(work, [sys.executable, "-P", "-m", "rlcore.compiled.compiler", settings, *map(str, places)])
    if code:
        lines = said.splitlines() or [f"exit code {code}"]
        log.error("the process that compiles said:\n%s", "\n".join(lines))
        reason = next((line for line in lines if "error:" in line or ERROR.match(line)), lines[-1])
        raise CompilationError(f"it could not be compiled ({reason.strip()[:300]}); check the C++ compiler")


def _run(work: Path, words: Sequence[str], folder: Path | None = None) -> tuple[int, str]:
    """Exit code of a command and what it said; its whole group ends with this process, in whatever way that does."""
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
            raise CompilationError(f"the C++ compiler gave nothing for {BUILD_LIMIT:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the shell's cat, and compilers that a dead child has left
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def main(settings: list[Any], places: Sequence[Path]) -> int:
    """The child: packages of all programs, or the units of them, the compiler imported once; 1 where one failed."""
    as_one, threads, precision, deterministic = settings
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic)
    # In the child alone: it takes seconds to import. What each program's process needs is imported once, before it.
    from torch._inductor import compile_fx, config, cpu_vec_isa, package  # noqa: F401

    # Headers would be kept in /tmp for ever; what debuggers and profilers read takes a tenth of the time.
    for switch in ("precompile_headers", "enable_line_tables", "enable_frame_pointer"):
        if hasattr(config.aot_inductor, switch):
            setattr(config.aot_inductor, switch, False)
    cpu_vec_isa.pick_vec_isa()  # it asks the compiler what it can, once for all
    _allocate_no_second_name()
    _keep_what_a_loop_returns()
    _spread_what_is_computed()
    return int(not _in_children(places, as_one))


def _allocate_no_second_name() -> None:
    """Keep Inductor from allocating again what a loop has filled.

    A tensor that the loop writes into has another name after it. Where a kernel then puts its result in that tensor's
    place, torch 2.13 declares the name a second time, and the C++ compiler refuses it.
    """
    from torch._inductor import ir  # loaded by `main`, and nowhere else
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen  # likewise

    plain = PythonWrapperCodegen.codegen_allocation

    def codegen_allocation(self: Any, buffer: Any) -> None:
        if not isinstance(buffer, ir.MutationOutput):
            plain(self, buffer)

    PythonWrapperCodegen.codegen_allocation = codegen_allocation


def _keep_what_a_loop_returns() -> None:
    """Keep Inductor from reusing the memory of a loop's initial value that the loop returns unchanged.

    The result of the loop is then another name for that memory. torch 2.13 takes the initial value for dead after the
    loop and writes other results into it. A scan's carry may come back unchanged, and the gradient of a parameter that
    no step reads does: it is the zero that the loop began with.
    """
    from torch._inductor import ir  # loaded by `main`, and nowhere else
    from torch._inductor.virtualized import V  # likewise

    plain = ir.WhileLoop.create.__func__

    def create(cls: Any, cond_fn: Any, body_fn: Any, carried_inputs: Any, *more: Any) -> Any:
        outputs = plain(cls, cond_fn, body_fn, carried_inputs, *more)
        if loop := next((part.inputs[0] for part in outputs if isinstance(part, ir.MultiOutput)), None):
            given, ends = [*body_fn.graph.graph_inputs], body_fn.graph.graph_outputs
            began = [*loop.carried_inputs, *loop.additional_inputs]
            used: Any = [node.args[1] for node in V.graph.current_node.users]
            for index in used:
                after, seen = index, set[int]()
                # A step may also return one carried value in the place of another: follow it to where it began.
                while after < len(ends) and after not in seen and (name := ends[after].get_name()) in given:
                    seen.add(after)
                    after = given.index(name)
                    V.graph.never_reuse_buffers |= {began[after].get_name(), outputs[index].get_name()}
        return outputs

    ir.WhileLoop.create = classmethod(create)


def _spread_what_is_computed() -> None:
    """Keep Inductor from computing anew, for each 16 elements of a loop, what is broadcast over them.

    As the roots and quotients of a norm's statistics, and the powers that correct Adam's means: with them its step of
    136,000 parameters took 0.29 ms, without 0.06.
    """
    from torch._inductor import ir  # loaded by `main`, and nowhere else

    plain = ir.StorageBox.mark_reuse

    def mark_reuse(self: Any, users: int, **how: Any) -> None:
        plain(self, users, **how)
        wide = users >= WIDE and isinstance(self.data, ir.Pointwise)
        if wide and not SLOW.isdisjoint(self.data.inner_fn_opcount().used_ops):
            self.realize()

    ir.StorageBox.mark_reuse = mark_reuse


def _in_children(places: Sequence[Path], as_one: bool) -> bool:
    """Have a process for each program, forked from here, compile it; False where one failed."""
    running, most = 0, max(1, cores() // 2)  # each takes a quarter of a gigabyte
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
    """In a process of its own, which ends here; `as_one`: where it can, it leaves one unit."""
    code = 1
    try:
        if as_one:
            one_unit.install(place)
        # Imported by `main`, and nowhere else.
        from torch._inductor import aoti_compile_and_package

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
