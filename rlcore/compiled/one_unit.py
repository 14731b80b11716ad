"""Faster builds of AOTInductor packages, from one small C++ file instead of torch's two large ones.

torch generates two C++ files for a package: the kernels, and a wrapper that calls them. Most of the wrapper (90 %) is a
class for constants, streams and copies of a model, which the functions of a run do not use. Compiling this class takes
two thirds of a build. This module writes one file that contains the wrapper's main function, the kernels, and the few
C functions that torch needs to load a package. The kernels are compiled with torch's options, so that results are
bit-identical.

If the generated code does not match the regular expressions of this module, or the file does not compile, torch's two
files are compiled.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

# The names differ, because the runner reads NAME.json next to NAME.so as a list of operations that it calls.
SOURCE, COMMAND, LIBRARY = "unit.cpp", "command.json", "package.so"
SIZES = re.compile(r": AOTInductorModelBase\((?P<inputs>\d+),\s*(?P<outputs>\d+),\s*(?P<constants>\d+),")
RUN = re.compile(r"^void AOTInductorModel::run_impl\(.*?^\} // AOTInductorModel::run_impl$", re.MULTILINE | re.DOTALL)
SPEC = re.compile(r'^ *(?P<name>in|out)_spec_ = (?P<text>R"\(.*\)");$', re.MULTILINE)
CACHED = re.compile(r"^CACHE_TORCH_\w+\(\w+\);$", re.MULTILINE)
# Lines of the function that are removed: checks that are off by default in torch, and code for GPU kernels.
LEFT_OUT = re.compile(
    r"^ *(?:if \(_check_aoti_runtime_check_inputs_env\(\)\) \{.*\}|__check_inputs_outputs\(.*\);"
    r"|\[\[maybe_unused\]\] auto& kernels = .*;)\n",
    re.MULTILINE,
)
# Functions that the runner looks up, but never calls for a model without constants.
NEVER_CALLED = """
ContainerGetConstantName ContainerGetConstantOriginalFQN ContainerGetConstantDtype ContainerExtractConstantsMap
ContainerUpdateUserManagedConstantBuffer ContainerUpdateConstantBuffer ContainerUpdateConstantBufferFromCpu
ContainerUpdateInactiveConstantBuffer ContainerRunConstantFolding ContainerSwapConstantBuffer
ContainerFreeInactiveConstantBuffer ContainerGetConstantsBlobSize ContainerRunSingleThreaded UpdateConstantsFromBlob
"""
UNIT = """\
%(kernels)s
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
%(cached)s
namespace torch::aot_inductor {
using DeviceStreamType = void*;
struct AOTInductorModel {
  int32_t device_idx_ = -1;  // CPU
  void run_impl(AtenTensorHandle*, AtenTensorHandle*, DeviceStreamType, AOTIProxyExecutorHandle);
};
%(run)s
}  // namespace torch::aot_inductor

#define EXPORTED extern "C" __attribute__((__visibility__("default"))) int32_t
static torch::aot_inductor::AOTInductorModel model;
static thread_local std::string last_error;
EXPORTED AOTInductorModelContainerCreateWithDevice(void** handle, size_t, const char*, const char*) {
  *handle = &model;
  return 0;
}
EXPORTED AOTInductorModelContainerDelete(void*) { return 0; }
EXPORTED AOTInductorModelContainerGetNumOutputs(void*, size_t* count) { *count = %(outputs)s; return 0; }
EXPORTED AOTInductorModelContainerGetNumConstants(void*, size_t* count) { *count = 0; return 0; }
EXPORTED AOTInductorModelContainerGetCallSpec(void*, const char** in_spec, const char** out_spec) {
  *in_spec = %(in_spec)s;
  *out_spec = %(out_spec)s;
  return 0;
}
EXPORTED AOTInductorGetLastError(const char** words) { *words = last_error.c_str(); return 0; }
EXPORTED AOTInductorModelContainerRun(
    void*, AtenTensorHandle* inputs, size_t, AtenTensorHandle* outputs, size_t, void* stream,
    AOTIProxyExecutorHandle proxy) {
  const bool with_gradients = aoti_torch_grad_mode_is_enabled();
  int32_t failed = 0;
  aoti_torch_grad_mode_set_enabled(false);
  try {
    model.run_impl(inputs, outputs, stream, proxy);
  } catch (const std::exception& error) {
    last_error = error.what();
    failed = 1;
  } catch (...) {
    last_error = "unknown exception";
    failed = 1;
  }
  aoti_torch_grad_mode_set_enabled(with_gradients);
  return failed;
}
%(never_called)s
"""


def install(place: Path) -> None:
    """Patch torch's compiler in this process so that it writes one C++ file to `place` and then exits the process.

    `finish` compiles this file. If this version of torch lacks a function that the patch needs, nothing is patched.
    """
    from torch._inductor import cpp_builder  # torch's compiler, which takes seconds to import

    plain = getattr(cpp_builder, "run_compile_cmd", None)
    if plain is not None and runner() is not None:
        cpp_builder.run_compile_cmd = Commands(plain, place)


def finish(place: Path, run: Callable[[Sequence[str], Path], tuple[int, str]]) -> bool:
    """Compile the C++ file in a folder.

    A process in which `install` has replaced torch's compilation step wrote this file.

    Args:
        place: the folder; the result is `package.pt2` in it.
        run: function that executes a command in a folder and returns its exit code and output.

    Returns:
        True if the package was written and torch can load it.
    """
    if not (place / COMMAND).exists():
        return False
    if run(json.loads((place / COMMAND).read_text()), place)[0]:
        return False
    load, library = runner(), place / LIBRARY
    assert load is not None
    try:
        load(str(library), 1)
    except RuntimeError:  # the runner of this torch version requires more functions
        return False
    with zipfile.ZipFile(place / "package.pt2", "w") as package:
        package.write(library, f"package/data/aotinductor/model/{LIBRARY}")
    return True


def runner() -> Callable[[str, int], Any] | None:
    """Return torch's class that loads a compiled library (path, number of copies); None if torch does not have it."""
    return getattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu", None)  # pyright: ignore[reportPrivateUsage]


class Commands:
    """Replacement for the function of torch that runs the commands of a build: two compile commands and a link command.

    The compile commands are not executed but stored. When the link command follows, one C++ file for `finish` is
    written instead of executing the three commands.

    Args:
        plain: torch's function, which takes a command line and a working directory.
        place: folder to which the C++ file is written.
    """

    def __init__(self, plain: Callable[[str, str], None], place: Path) -> None:
        self._plain, self._place = plain, place
        self._kept: dict[str, str] = {}  # "wrapper" and "kernel" -> command line

    def __call__(self, cmd_line: str, cwd: str) -> None:
        """Process one command of the build.

        A compile command is stored. At the link command, the C++ file is written and the process exits; if the file
        cannot be written, the stored commands and the link command are executed. All other commands are executed.

        Args:
            cmd_line: the command line.
            cwd: working directory of the command.
        """
        words = shlex.split(cmd_line)
        kind = next((k for k in ("wrapper", "kernel") for word in words if word.endswith(f".{k}.cpp")), None)
        if kind and "-c" in words:
            self._kept[kind] = cmd_line
            return
        if "-shared" in words:
            kept, self._kept = self._kept, {}
            if len(kept) == 2 and leave(self._place, kept, words):
                os._exit(0)
            for command in kept.values():
                self._plain(command, cwd)
        self._plain(cmd_line, cwd)


def unit(wrapper: str, kernels: str) -> str | None:
    """Merge the contents of torch's two C++ files into one; return None if they do not have the expected structure."""
    sizes, run = SIZES.search(wrapper), RUN.search(wrapper)
    specs = {found["name"]: found["text"] for found in SPEC.finditer(wrapper)}
    if sizes is None or run is None or int(sizes["constants"]) or set(specs) != {"in", "out"}:
        return None
    return UNIT % {
        "kernels": kernels,
        "cached": "\n".join(CACHED.findall(wrapper)),
        "run": LEFT_OUT.sub("", run[0]),
        "outputs": sizes["outputs"],
        "in_spec": specs["in"],
        "out_spec": specs["out"],
        "never_called": "\n".join(
            f"EXPORTED AOTInductorModel{name}() {{ return 1; }}" for name in NEVER_CALLED.split()
        ),
    }


def leave(place: Path, kept: Mapping[str, str], link: Sequence[str]) -> bool:
    """Write one C++ file for a package, and the command that compiles it, if the generated code can be merged.

    Args:
        place: folder to write to.
        kept: "wrapper" and "kernel" -> torch's command line that compiles the file of that name.
        link: torch's link command, split into words.

    Returns:
        True if the files were written.
    """
    compile_ = {kind: shlex.split(line) for kind, line in kept.items()}
    sources = {kind: next(w for w in words if w.endswith(f".{kind}.cpp")) for kind, words in compile_.items()}
    text = unit(Path(sources["wrapper"]).read_text(), Path(sources["kernel"]).read_text())
    if text is None:
        return False
    (place / SOURCE).write_text(text)
    words = compile_["kernel"]
    flags = [word for word in words if word not in ("-c", "-o", sources["kernel"], _word_after(words, "-o"))]
    libraries = [word for word in link if word.startswith(("-l", "-L"))]
    command = [*flags, SOURCE, "-shared", *libraries, "-Wl,-z,defs", "-o", LIBRARY]  # -z defs: no undefined symbols
    (place / COMMAND).write_text(json.dumps(command))
    return True


def _word_after(words: Sequence[str], option: str) -> str:
    return words[words.index(option) + 1]
