"""One translation unit from the two files of torch: accepted forms, contents, and fallback for other files."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcore.compiled import one_unit

WRAPPER = """\
#include <torch/csrc/inductor/aoti_runtime/model_container.h>
CACHE_TORCH_DTYPE(float32);
AOTInductorModel::AOTInductorModel()
    : AOTInductorModelBase(2,
                           3,
                           0,
                           device_str) {
    in_spec_ = R"([1, "in"])";
    out_spec_ = R"([1, "out"])";
}
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles
) {
    __check_inputs_outputs(input_handles, output_handles);
    [[maybe_unused]] auto& kernels = static_cast<AOTInductorModelKernels&>(*this->kernels_.get());
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {}, {}, "input"); }
    cpp_fused_0(1);
} // AOTInductorModel::run_impl
"""
KERNELS = 'extern "C" void cpp_fused_0(int) {}\n'


def run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command like the compiler's process, but do not end it together with this process."""
    return subprocess.run(command, cwd=folder).returncode, ""


def test_unit_contains_kernels_and_function_but_no_container() -> None:
    source = one_unit.unit(WRAPPER, KERNELS)
    assert source is not None
    for part in (KERNELS, "CACHE_TORCH_DTYPE(float32);", "    cpp_fused_0(1);\n", "*count = 3;", 'R"([1, "out"])"'):
        assert part in source
    for part in ("model_container", "__check_inputs_outputs", "assert_size_stride", "AOTInductorModelKernels"):
        assert part not in source


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("3,\n                           0,", "3,\n                           1,"),
        ("run_impl", "run"),
        ("out_spec_", ""),
    ],
    ids=["constants", "no function", "no spec"],
)
def test_unit_refuses_files_of_other_form(there: str, instead: str) -> None:
    assert one_unit.unit(WRAPPER.replace(there, instead), KERNELS) is None


def test_commands_compile_other_files_with_original_commands(tmp_path: Path) -> None:
    ran: list[str] = []
    commands = one_unit.Commands(lambda cmd_line, cwd: ran.append(cmd_line), tmp_path)
    (tmp_path / "a.wrapper.cpp").write_text("another form")
    (tmp_path / "a.kernel.cpp").write_text(KERNELS)
    lines = [f"g++ {tmp_path}/a.{kind}.cpp -c -o {tmp_path}/a.{kind}.o" for kind in ("wrapper", "kernel")]
    lines += ["g++ weights.S -c -o weights.o", f"g++ a.wrapper.o a.kernel.o -shared -lm -o {tmp_path}/a.so"]
    for line in lines:
        commands(line, str(tmp_path))
    assert ran == [lines[2], lines[0], lines[1], lines[3]]
    assert not one_unit.finish(tmp_path, run)  # no unit was written


def test_leave_writes_command_with_kernel_flags_and_libraries(tmp_path: Path) -> None:
    (tmp_path / "a.wrapper.cpp").write_text(WRAPPER)
    (tmp_path / "a.kernel.cpp").write_text(KERNELS)
    kept = {
        "wrapper": f"g++ {tmp_path}/a.wrapper.cpp -O1 -c -o w.o",
        "kernel": f"g++ {tmp_path}/a.kernel.cpp -O3 -ffp-contract=off -c -o k.o",
    }
    assert one_unit.leave(tmp_path, kept, ["g++", "w.o", "k.o", "-shared", "-ltorch", "-L/lib", "-o", "a.so"])
    command = json.loads((tmp_path / one_unit.COMMAND).read_text())
    flags = ["-O3", "-ffp-contract=off", one_unit.SOURCE, "-shared", "-ltorch", "-L/lib", "-Wl,-z,defs"]
    assert command == ["g++", *flags, "-o", one_unit.LIBRARY]


@pytest.mark.parametrize("failing", ["compiler", "runner", "nothing"])
def test_finish_writes_package_if_unit_compiles_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    write = f"import sys; open({one_unit.LIBRARY!r}, 'w').write('code'); sys.exit({int(failing == 'compiler')})"
    (tmp_path / one_unit.COMMAND).write_text(json.dumps([sys.executable, "-c", write]))

    def load(path: str, copies: int) -> Any:
        assert Path(path).read_text() == "code"
        if failing == "runner":
            raise RuntimeError("undefined symbol")

    monkeypatch.setattr(one_unit, "runner", lambda: load)
    assert one_unit.finish(tmp_path, run) is (failing == "nothing")
    assert (tmp_path / "package.pt2").exists() is (failing == "nothing")
    if failing == "nothing":
        with zipfile.ZipFile(tmp_path / "package.pt2") as package:
            (name,) = package.namelist()
            assert name.endswith(".so") and package.read(name) == b"code"


@pytest.mark.slow
def test_install_changes_nothing_without_compile_hook(tmp_path: Path) -> None:
    script = (
        "from torch._inductor import cpp_builder; from rlcore.compiled import one_unit; from pathlib import Path\n"
        "plain = cpp_builder.run_compile_cmd; one_unit.runner = lambda: None; one_unit.install(Path('.'))\n"
        "assert cpp_builder.run_compile_cmd is plain\n"
        "del cpp_builder.run_compile_cmd; one_unit.install(Path('.'))\n"
        "assert not hasattr(cpp_builder, 'run_compile_cmd')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
