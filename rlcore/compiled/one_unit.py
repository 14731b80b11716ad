"""A package as one small translation unit: what torch generates, without the container that it puts around it.

torch has the C++ compiler read two files for each package. Of the first, the wrapper that calls the kernels, nine
tenths are a container for constants, streams and copies of the model, which our functions have not: to read it takes
two thirds of a build. Here the wrapper's own function and the kernels are one file, with the few C functions of a
container that torch's runner asks for. Kernels are compiled as torch compiles them, so numbers are the same to the bit.

Where torch has another form than these patterns know, or the file does not compile, torch's own two files are
compiled as ever.
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

# Not called alike: the runner takes NAME.json beside NAME.so for operations that it is to call.
SOURCE, COMMAND, LIBRARY = "unit.cpp", "command.json", "package.so"
SIZES = re.compile(r": AOTInductorModelBase\((?P<inputs>\d+),\s*(?P<outputs>\d+),\s*(?P<constants>\d+),")
RUN = re.compile(r"^void AOTInductorModel::run_impl\(.*?^\} // AOTInductorModel::run_impl$", re.MULTILINE | re.DOTALL)
SPEC = re.compile(r'^ *(?P<name>in|out)_spec_ = (?P<text>R"\(.*\)");$', re.MULTILINE)
CACHED = re.compile(r"^CACHE_TORCH_\w+\(\w+\);$", re.MULTILINE)
# Of the function: checks that are off unless a variable of torch's asks for them, and what only GPUs' kernels need.
LEFT_OUT = re.compile(
    r"^ *(?:if \(_check_aoti_runtime_check_inputs_env\(\)\) \{.*\}|__check_inputs_outputs\(.*\);"
    r"|\[\[maybe_unused\]\] auto& kernels = .*;)\n",
    re.MULTILINE,
)
# What the runner looks up and no function without constants is asked for.
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
  int32_t device_idx_ = -1;  // of a processor
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
    last_error = "an exception that has no words";
    failed = 1;
  }
  aoti_torch_grad_mode_set_enabled(with_gradients);
  return failed;
}
%(never_called)s
"""


def install(place: Path) -> None:
    """Have Inductor, in this process, leave one unit for `finish` in an empty folder and end the process there.

    Where this torch has no such place, nothing changes.
    """
    from torch._inductor import cpp_builder  # the compiler, which takes seconds to import

    plain = getattr(cpp_builder, "run_compile_cmd", None)
    if plain is not None and runner() is not None:
        cpp_builder.run_compile_cmd = Commands(plain, place)


def finish(place: Path, run: Callable[[Sequence[str], Path], tuple[int, str]]) -> bool:
    """Compile the unit that was left in a folder into package.pt2 there; whether there is one that torch can load.

    `run` runs a command in a folder, and gives its exit code and what it said.
    """
    if not (place / COMMAND).exists():
        return False
    if run(json.loads((place / COMMAND).read_text()), place)[0]:
        return False
    load, library = runner(), place / LIBRARY
    assert load is not None
    try:
        load(str(library), 1)
    except RuntimeError:  # of a torch whose runner asks for more
        return False
    with zipfile.ZipFile(place / "package.pt2", "w") as package:
        package.write(library, f"package/data/aotinductor/model/{LIBRARY}")
    return True


def runner() -> Callable[[str, int], Any] | None:
    """The class of torch that calls a library, of its path and a number of copies; None where this torch has none."""
    return getattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu", None)  # pyright: ignore[reportPrivateUsage]


class Commands:
    """Command lines of a package's build: two are kept back, and where the third would link them all become one unit.

    Args:
        plain: torch's own function, of a command line and a folder.
        place: where the unit is left.
    """

    def __init__(self, plain: Callable[[str, str], None], place: Path) -> None:
        self._plain, self._place = plain, place
        self._kept: dict[str, str] = {}  # "wrapper" and "kernel" -> command line

    def __call__(self, cmd_line: str, cwd: str) -> None:
        """Run a command line, keep it back, or leave the unit that those kept back and this one come to, and end."""
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
    """One translation unit of the two files of a package; None where they hold what it has no place for."""
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
    """Write the unit of a package, and the command that makes a library of it, unless it has another form.

    Args:
        place: the folder.
        kept: "wrapper" and "kernel" -> the command line that would compile it.
        link: the words of the one that would link them.

    Returns:
        Whether the unit is there.
    """
    compile_ = {kind: shlex.split(line) for kind, line in kept.items()}
    sources = {kind: next(w for w in words if w.endswith(f".{kind}.cpp")) for kind, words in compile_.items()}
    text = unit(Path(sources["wrapper"]).read_text(), Path(sources["kernel"]).read_text())
    if text is None:
        return False
    (place / SOURCE).write_text(text)
    words = compile_["kernel"]
    flags = [word for word in words if word not in ("-c", "-o", sources["kernel"], _behind(words, "-o"))]
    libraries = [word for word in link if word.startswith(("-l", "-L"))]
    command = [*flags, SOURCE, "-shared", *libraries, "-Wl,-z,defs", "-o", LIBRARY]  # no name is left for the loader
    (place / COMMAND).write_text(json.dumps(command))
    return True


def _behind(words: Sequence[str], option: str) -> str:
    """The word behind an option."""
    return words[words.index(option) + 1]
