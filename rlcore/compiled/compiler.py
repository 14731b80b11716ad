"""Compilation of traced functions to AOTInductor packages, in child processes that run in parallel.

The training process does not import torch's compiler, which would take 200 MB of memory and delay the handling of
signals. If the training process ends for any reason, all processes of a compilation are killed.
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
from rlcore.compiled.when_to_compile import PLAIN_PATH, find_compiler
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
    """Return the torch settings of this process that affect the generated code; compiler processes use them too."""
    return [torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]


def compile_programs(work: Path, programs: Sequence[tuple[GraphModule, Sequence[Tensor]]]) -> list[bytes]:
    """Compile traced functions and return the content of one package for each.

    Args:
        work: empty folder for temporary files.
        programs: traced functions, each with example inputs that define shapes and dtypes.

    Returns:
        The packages, in the order of `programs`.

    Raises:
        CompilationError: if a function cannot be compiled.
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
    """Return the environment variables of a compiler process.

    Inductor settings of the user are removed, and temporary and cached files are written to `work`.
    """
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
    """Compile `program.pt2` to `package.pt2` in each of the folders `places`.

    A child process generates C++ code and exits before the C++ compiler starts, so that the two do not need memory at
    the same time. No child process survives this call or this process.
    """
    _generate(work, places, as_one=True)
    there = [(place / "package.pt2").exists() or one_unit.finish(place, partial(_run, work)) for place in places]
    if left := [place for place, done in zip(places, there, strict=True) if not done]:
        _generate(work, left, as_one=False)


def _generate(work: Path, places: Sequence[Path], as_one: bool) -> None:
    """Run torch's compiler on the program in each folder, in a child process.

    If `as_one` is True, the child process does not run the C++ compiler, but writes one C++ file per folder for it (see
    `rlcore.compiled.one_unit`). If the version of torch does not support that, it writes the package.
    """
    settings = json.dumps([as_one, *switches()])
    code, output = _run(work, [sys.executable, "-P", "-m", "rlcore.compiled.compiler", settings, *map(str, places)])
    if code:
        lines = output.splitlines() or [f"exit code {code}"]
        log.error("output of the process that compiles:\n%s", "\n".join(lines))
        reason = next((line for line in lines if "error:" in line or ERROR.match(line)), lines[-1])
        raise CompilationError(f"compilation failed ({reason.strip()[:300]}); check the C++ compiler")


def _run(work: Path, words: Sequence[str], folder: Path | None = None) -> tuple[int, str]:
    """Run a command in a new process group, which is killed when this process ends.

    Args:
        work: folder for the output and the caches of the command.
        words: the command and its arguments.
        folder: working directory of the command; None: that of this process.

    Returns:
        The exit code, and the combined stdout and stderr.
    """
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
            raise CompilationError(
                f"the C++ compiler did not finish in {BUILD_LIMIT:.0f} s; reduce the load of this machine or set "
                "algo.compile=false"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the shell's cat, and compilers of a child that has died
            child.wait()
            assert child.stdin is not None
            child.stdin.close()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def main(settings: list[Any], places: Sequence[Path]) -> int:
    """Compile the program in each folder; entry point of the compiler process, which imports the compiler once.

    Args:
        settings: `as_one` (see `_generate`), followed by the values of `switches`.
        places: folders, each with a `program.pt2`.

    Returns:
        The exit code of the process: 1 if a program failed, else 0.
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
    _add_bias_with_activation()
    return int(not _in_children(places, as_one))


def _allocate_no_second_name() -> None:
    """Patch Inductor so that it does not declare a C++ variable twice after a loop.

    Inductor gives a second name to a tensor that a loop has changed. If a later kernel reuses the memory of this tensor
    for its result, torch 2.13 allocates and declares the second name again, and the C++ compiler rejects the code.
    """
    from torch._inductor import ir  # imported in the compiler process only (see `main`)
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen  # imported in the compiler process only

    plain = PythonWrapperCodegen.codegen_allocation

    def codegen_allocation(self: Any, buffer: Any) -> None:
        if not isinstance(buffer, ir.MutationOutput):
            plain(self, buffer)

    PythonWrapperCodegen.codegen_allocation = codegen_allocation


def _keep_what_a_loop_returns() -> None:
    """Patch Inductor so that it does not overwrite an initial value that a loop returns unchanged.

    If a loop returns an initial value unchanged, its result and the initial value share memory. torch 2.13 considers
    the initial value unused after the loop, and stores other results in this memory. An example is the gradient of a
    parameter that no step of a scan reads: the result is the zero tensor that was the initial value.
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
    """Patch Inductor so that slow operations on a broadcast value are computed once and their result is stored.

    Without the patch, the generated loop over elements computes the value again for every 16 elements. Examples are the
    square root and quotient of a normalization layer, and the powers in Adam's bias correction. An Adam step over
    136,000 parameters takes 0.29 ms without the patch and 0.06 ms with it.
    """
    from torch._inductor import ir  # imported in the compiler process only (see `main`)

    plain = ir.StorageBox.mark_reuse

    def mark_reuse(self: Any, users: int, **how: Any) -> None:
        plain(self, users, **how)
        wide = users >= WIDE and isinstance(self.data, ir.Pointwise)
        if wide and not SLOW.isdisjoint(self.data.inner_fn_opcount().used_ops):
            self.realize()

    ir.StorageBox.mark_reuse = mark_reuse


def _add_bias_with_activation() -> None:
    """Patch Inductor so that it adds the bias of a layer in the same loop as the activation function, as on a GPU.

    Without the patch, torch copies the bias to all rows of the output before the matrix product. An update of PPO with
    batches of 8,192 and layers of 64 takes 11.4 ms per batch without the patch and 9.8 ms with it.
    """
    from torch._inductor.fx_passes import post_grad  # imported in the compiler process only (see `main`)

    def always(device: str) -> bool:
        return True

    post_grad.is_gpu = always  # used by the choice between `addmm` and `mm` only


def _in_children(places: Sequence[Path], as_one: bool) -> bool:
    """Compile the program in each folder, each in a process forked from this one; return False if one failed."""
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
    """Compile the program in one folder, then exit this forked process (`as_one`: see `_generate`)."""
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
