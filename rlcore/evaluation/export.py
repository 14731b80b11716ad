"""Export of a policy to files that run without Shepherd: ONNX (`torch.onnx`) and PyTorch (`torch.export`)."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export import Dim, ExportedProgram

from rlcore import __version__
from rlcore.errors import ShepherdError, UserError, first_line, machine_fault
from rlcore.evaluation.export_check import Agreement, Arrays, compare
from rlcore.evaluation.greedy_policy import GreedyPolicy, example
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.signature import Column
from rlcore.system.durable import sync_directory, write_synced

METADATA = "shepherd"  # key of the description of the policy in the files
BATCH = "batch"  # name of the batch dimension in the files
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
ONNX_LIMIT = 2_000_000_000  # bytes; protobuf, the format of ONNX files, cannot store more than 2 GiB
NO_STREAM = r"'NoneType' object has no attribute '(normal|exponential|uniform|bernoulli)'|sampling needs a stream"
NOISY = ("torch.onnx", "onnxscript", "onnx_ir")  # loggers that comment on details of the conversion


class ExportedFile(NamedTuple):
    """File that contains a policy and runs without Shepherd.

    Attributes:
        path: path of the file.
        inputs: name, shape and dtype of each input.
        outputs: name, shape and dtype of each output.
        agreement: result of the comparison with the policy.
    """

    path: Path
    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]
    agreement: Agreement


def check_destinations(onnx: str | Path | None, torch_file: str | Path | None) -> None:
    """Raise a UserError if the files of an export cannot be written, or if a package is missing for ONNX.

    Folders of the files are created if they do not exist. The arguments are those of `export_files`.
    """
    if onnx is None and torch_file is None:
        raise UserError("export: no file is given; add --onnx policy.onnx, --torch policy.pt2, or both")
    for option, file, suffix in (("--onnx", onnx, ".onnx"), ("--torch", torch_file, ".pt2")):
        if file is None:
            continue
        path = Path(file)
        if path.suffix != suffix or path.is_dir():
            raise UserError(f"{option} {file}: must be the name of a file that ends in {suffix}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path.parent, os.W_OK):
                raise PermissionError(0, "Permission denied")
        except OSError as error:
            raise UserError(f"{option} {file}: its folder cannot be written ({error.strerror})") from None
    if onnx is not None and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
        raise UserError(f"--onnx {onnx}: {missing[0]} is not installed; run: pip install -e '.[onnx]'")


def export_files(
    policy: LoadedPolicy, onnx: str | Path | None = None, torch_file: str | Path | None = None
) -> list[ExportedFile]:
    """Write a policy to files that run without Shepherd, and compare each file with the policy.

    The files appear under their names only after the comparison of all files has succeeded.

    Args:
        policy: trained policy.
        onnx: path of the ONNX file; None: do not write one.
        torch_file: path of the file for `torch.export.load`; None: do not write one.

    Returns:
        The written files.

    Raises:
        UserError: If the policy cannot be exported, a file cannot be written, or a package is missing.
        RunError: If the outputs of an exported file differ from those of the policy.
    """
    check_destinations(onnx, torch_file)
    wanted = [(Path(path), write) for path, write in ((onnx, _write_onnx), (torch_file, _write_torch)) if path]
    module, program = trace(policy)
    written, temporary = list[ExportedFile](), dict[Path, Path]()
    try:
        for path, write in wanted:
            draft = temporary[path] = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
            with _explain(policy, str(path)), _quiet():
                agreement = compare(policy, module, write(program, module, policy, draft), str(path))
            written.append(ExportedFile(path, module.inputs, module.outputs, agreement))
        for path, draft in temporary.items():
            draft.replace(path)
            sync_directory(path.parent)
    finally:
        for draft in temporary.values():
            draft.unlink(missing_ok=True)
    return written


def trace(policy: LoadedPolicy) -> tuple[GreedyPolicy, ExportedProgram]:
    """Return a policy as a function of named tensors, and the graph of this function for any batch size.

    If the function cannot be traced, a UserError names the algorithm and the reason.
    """
    with _explain(policy, "export"), _quiet(), torch.no_grad():
        module, inputs = GreedyPolicy(policy).eval(), example(policy)
        module(inputs)  # modules create some constants at the first call; they must not be created while tracing
        batch = Dim(BATCH, min=1)
        return module, torch.export.export(module, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},))


def describe_export(policy: LoadedPolicy, module: GreedyPolicy) -> dict[str, Any]:
    """Return what the files contain about their policy, as JSON values: its origin, inputs and outputs."""
    known = {key: policy.description.get(key) for key in ("policy_steps", "digest")}
    columns = {"inputs": module.inputs, "outputs": module.outputs}
    return {
        "shepherd": __version__,
        "algorithm": policy.description["algo"]["name"],
        "environment": policy.spec.id,
        **known,
        **{name: [{"name": c.name, "dtype": c.dtype, "shape": c.shape} for c in of] for name, of in columns.items()},
    }


def _write_onnx(
    program: ExportedProgram, module: GreedyPolicy, policy: LoadedPolicy, path: Path
) -> Callable[[Arrays], Arrays]:
    """Write an ONNX file; return a function that computes its outputs from its inputs with ONNX Runtime."""
    onnxruntime: Any = import_module("onnxruntime")  # an optional dependency

    if sum(weight.nbytes for weight in program.state_dict.values()) > ONNX_LIMIT:
        raise UserError(f"{path}: the weights exceed 2 GB, the limit of an ONNX file; use --torch")
    shapes = ({column.name: {0: BATCH} for column in module.inputs},)
    inputs, outputs = ([column.name for column in columns] for columns in (module.inputs, module.outputs))
    converted: Any = torch.onnx.export(
        program, (), input_names=inputs, output_names=outputs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    converted.model.metadata_props[METADATA] = json.dumps(describe_export(policy, module))
    write_synced(path, converted.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    used = {node.name for node in session.get_inputs()}

    def run(given: Arrays) -> Arrays:
        found = session.run(outputs, {name: array for name, array in given.items() if name in used})
        return dict(zip(outputs, found, strict=True))

    return run


def _write_torch(
    program: ExportedProgram, module: GreedyPolicy, policy: LoadedPolicy, path: Path
) -> Callable[[Arrays], Arrays]:
    """Write a file of torch.export; return a function that computes its outputs from its inputs."""
    torch.export.save(program, path, extra_files={METADATA: json.dumps(describe_export(policy, module))})
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
    loaded = torch.export.load(path).module()

    def run(given: Arrays) -> Arrays:
        outputs = loaded({name: torch.from_numpy(np.array(array)) for name, array in given.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run


@contextmanager
def _explain(policy: LoadedPolicy, what: str) -> Iterator[None]:
    """Convert errors of the tracing and the conversion to a UserError with the algorithm and the reason."""
    try:
        yield
    except (ShepherdError, OSError):
        raise
    except Exception as error:  # of the user's network, torch.export, torch.onnx or ONNX Runtime
        if fault := machine_fault(error):
            raise fault from None
        name = policy.description["algo"]["name"]
        raise UserError(f"{what}: {name} cannot be exported, because {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = str(error)
    if re.search(NO_STREAM, text):
        return "its greedy actions need random numbers; use `rng` in `act` only if `greedy` is false"
    if "data-dependent" in text or "data dependent" in text:
        return "its code reads values of tensors, for example in `if x > 0` or by `x.item()`; use torch.where"
    if "Constraints violated" in text or "specialized" in text:
        return "its code has a fixed batch size; use x.shape[0] and not len(x)"
    return f"{type(error).__name__}: {first_line(error)}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log messages about details of the conversion."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
