"""Functions as machine code: loaded from the cache, or traced and built now.

A run needs its functions one after the other: policy inference comes before the first update. To build them in
parallel, training starts with a warm-up that calls all of them (`side_by_side`); missing ones are then built together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from rlcore.compiled import scan
from rlcore.compiled.package import Compiled, TracedFunction, build, cache_folder, constants, find, load, machine, shape
from rlcore.compiled.thin_products import turn_thin_products
from rlcore.errors import CompilationError, RunError, UserError, first_line
from rlcore.system.training_clock import not_training

if TYPE_CHECKING:
    from torch.fx import GraphModule

log = logging.getLogger(__name__)


def trace(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor]) -> GraphModule:
    """Trace the operations of a function, including its gradients, for tensors of the example's shapes."""
    with not_training(), warnings.catch_warnings():
        from torch.fx.experimental.proxy_tensor import make_fx  # takes 30 ms; only compiled runs need it

        warnings.simplefilter("ignore")
        # Without a mode set here, torch creates one for each operation, which takes a third of the time.
        one_mode = tracing(TracingContext(FakeTensorMode()))
        with one_mode, scan.tracing(by_shapes=False), suppress(scan.DataDependentScan):
            return turn_thin_products(make_fx(function)(*example))
        # Only this second trace, on fake tensors, supports scans. It is not used for all functions, because code that
        # caches a constant would then cache a tensor without values.
        with scan.tracing(by_shapes=True):
            return turn_thin_products(make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*example))


@not_training()
def make_once(
    what: str,
    function: Callable[..., tuple[Tensor, ...]],
    example: Sequence[Tensor],
    facts: Facts,
    memory: Sequence[int] = (),
) -> tuple[Compiled, Any]:
    """Return machine code for a function of tensors: list of inputs -> list of outputs.

    The function is traced only if the cache does not contain it.

    Args:
        what: description of the function for messages.
        function: function of tensors; everything else that it reads must be constant.
        example: example inputs; the machine code accepts only tensors of these shapes, dtypes and contiguous layout.
        facts: cache-key inputs, other than the source code of rlcore.
        memory: as in `TracedFunction`.

    Returns:
        The machine code, and the result of `facts.notes()` after the function was traced.

    Raises:
        CompilationError: if the function cannot be compiled, or the machine code computes something else.
        ValueError: if the function reads a tensor of `facts.plain` as a constant.
    """
    example = _distinct(example)
    names = facts.names(example)
    known = _find_known(names)
    if known is None and _waiting is None:
        facts.prepare()
        known = _find_known(names)
    if known is not None:
        return known
    graph = trace(function, example)
    if any(isinstance(value, torch.nn.Parameter) for value in (*vars(graph).values(), *graph.parameters())):
        raise CompilationError(
            f"{what} reads parameters that are not its inputs; add their module to `uses` of the optimizer"
        )
    constant_ids = {id(value) for value in constants(graph).values()}
    for attribute in (name for name, value in facts.plain.items() if id(value) in constant_ids):
        raise ValueError(
            f"{what} reads the tensor {attribute!r}, which is not a buffer; register it with self.register_buffer"
        )
    traced = TracedFunction(
        what, graph, example, names[1 if constant_ids else 0] if names else None, facts.notes(), memory
    )
    if _waiting is None:
        if (refused := _refused.pop(traced.key, None) if _refused else None) is not None:
            raise refused
        return build([traced])[0], traced.notes
    _waiting.append(traced)
    return lambda inputs: list(graph(*inputs)), traced.notes


def _distinct(example: Sequence[Tensor]) -> list[Tensor]:
    """Clone repeated tensors: tracing would merge two inputs that are one object into a single input."""
    seen: set[int] = set()
    return [value.clone() if id(value) in seen else (seen.add(id(value)) or value) for value in example]


_waiting: list[TracedFunction] | None = None  # in a warm-up: functions that were requested and are not built yet
_refused: dict[str, CompilationError] = {}  # by key: functions that could not be built after the last warm-up


@contextmanager
def side_by_side() -> Iterator[None]:
    """Context manager for a warm-up: functions requested in it are traced and run uncompiled, and built at its end.

    A function that cannot be built is logged at once and is not built again when the training requests it.
    """
    global _waiting
    _waiting = []
    _refused.clear()
    try:
        yield
        _build_or_refuse(_waiting)
    finally:
        _waiting = None


def _build_or_refuse(functions: Sequence[TracedFunction]) -> None:
    """Build functions together; log those that cannot be built, and build the others without them."""
    if not functions:
        return
    try:
        build(functions)
    except CompilationError as error:
        faulty = {error.key} if error.key else {each.key for each in functions}
        if len(faulty) > 1:
            for each in functions:
                _build_or_refuse([each])
            return
        (key,) = faulty
        _refused[key] = error
        _warn(next(each.what for each in functions if each.key == key), error)
        _build_or_refuse([each for each in functions if each.key != key])


def rehearsing() -> bool:
    """Return True during a warm-up (inside `side_by_side`); functions then run uncompiled and are built at its end."""
    return _waiting is not None


def leave_as_written(what: str, began_with: str, began: bool, error: Exception, else_do: str = "") -> None:
    """Log that a function runs as eager code, because it cannot be traced or compiled.

    Args:
        what: description of the function, for the message.
        began_with: description of its compiled form, for the message of a run that began with it.
        began: True if the run has learned with the compiled form.
        error: why it cannot be traced or compiled.
        else_do: another remedy, for the message of a run that began with the compiled form.

    Raises:
        RunError: if the run `began` with the compiled form, and the function cannot be compiled now.
        UserError: if the run `began` with the compiled form, and the function cannot be traced now, for example with
            another version of torch.
    """
    if isinstance(error, CompilationError):
        if began:
            raise RunError(f"the run began with {began_with}, but {what} cannot be compiled now: {error}") from error
        if not rehearsing():
            _warn(what, error)
        return
    if began:
        raise UserError(
            f"the run began with {began_with}, which torch {torch.__version__} cannot trace here "
            f"({first_line(error)}); resume it with the version of torch that it began with{else_do}"
        ) from error
    if not rehearsing():
        log.warning("%s is not compiled and runs as eager code: %s", what, first_line(error))


def _warn(what: str, error: CompilationError) -> None:
    if not error.logged:
        log.warning("%s is not compiled; training continues with eager code: %s", what, error)
    error.logged = True


@dataclass(frozen=True)
class Facts:
    """Cache-key inputs that determine the code of a function before it is traced.

    If the cache has a function with these inputs, a start neither traces it nor loads the compiler.

    Attributes:
        config: JSON of the algorithm's config, the environment's spec and other inputs of the function's code.
        seed: seed of the run; part of the key if the function has constants, which may have been drawn at random.
        notes: returns JSON to store with the trace, for example the names of its outputs.
        made_of: functions, objects and classes whose code is traced.
        plain: name -> tensor that may be replaced later; a function that reads it as a constant is refused.
        prepare: called before a missing function is built, for example to build all functions in a warm-up.
    """

    config: Any
    seed: int
    notes: Callable[[], Any]
    made_of: Sequence[Any]
    plain: Mapping[str, Tensor] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None

    def names(self, example: Sequence[Tensor]) -> list[str]:
        """Return the cache keys of a function with these inputs: one for any seed, one for the seed of this run.

        The list is empty if the function contains code other than rlcore's and torch's. Without a trace it is not known
        what such code reads in addition to its inputs.
        """
        if not all(map(_own, self.made_of)):
            return []
        given = {"facts": self.config, "code": CODE, "inputs": [shape(value) for value in example], **machine()}
        texts = (json.dumps([given, seed], sort_keys=True, default=str) for seed in (None, self.seed))
        return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _own(part: Any) -> bool:
    """Return True if a function and its object, or a module and all its submodules, belong to rlcore or torch."""
    if isinstance(part, torch.nn.Module):
        return all(_of_ours(type(module)) for module in part.modules())
    return _of_ours(part) and _of_ours(type(getattr(part, "__self__", torch.nn.Module())))


def _of_ours(code: Any) -> bool:
    return str(getattr(code, "__module__", None)).partition(".")[0] in ("rlcore", "torch")


def code_digest() -> str:
    """Return the SHA-256 over all source files of rlcore on disk."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


CODE = code_digest()  # at import, because later edits do not affect this process


def _find_known(names: Sequence[str]) -> tuple[Compiled, Any] | None:
    """Return a function that an earlier start traced and its notes; None if there is no undamaged package."""
    folder = cache_folder()
    for name in names:
        with suppress(OSError):
            entry = json.loads(find(folder, name, "json") or "{}")
            if entry and (package := find(folder, entry["package"])) is not None:
                return load(package), entry["notes"]
    return None
