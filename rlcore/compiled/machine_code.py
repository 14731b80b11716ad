"""Functions as machine code: known from an earlier start, or traced and built now.

A run's functions come to light one after the other, acting before the first update. Built like that, each would wait
for the one before it; so whoever trains rehearses first (`side_by_side`), and all are built at once.
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
    """The operations that a function performs on tensors of the example's shapes, its gradients among them."""
    with not_training(), warnings.catch_warnings():
        from torch.fx.experimental.proxy_tensor import make_fx  # 30 ms, for compiled runs alone

        warnings.simplefilter("ignore")
        # Where none stands, each operation's result is noted in a mode of its own: a third of the time.
        one_mode = tracing(TracingContext(FakeTensorMode()))
        with one_mode, scan.tracing(by_shapes=False), suppress(scan.DataDependentScan):
            return turn_thin_products(make_fx(function)(*example))
        # By shapes alone, which is how a scan is traced. Not for all: code that keeps a constant which it has made
        # would keep one without numbers.
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
    """Machine code for a function of tensors: list of inputs -> list of outputs; traced where the cache has it not.

    Args:
        what: it is, for messages.
        function: of tensors; nothing else that it reads may change.
        example: its inputs: only tensors of these shapes, types and contiguous layout may be handed in.
        facts: all beside the code of this program and of plugins that decides what tracing finds.
        memory: as `TracedFunction` has it.

    Returns:
        The machine code, and what `facts.notes()` gave after the function was traced.

    Raises:
        CompilationError: there is no machine code of it, or none that computes what it does.
        ValueError: the function holds a tensor of `facts.plain`.
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
            f"{what} reads parameters that are none of its inputs; name their module in the optimizer's `uses`"
        )
    held = {id(value) for value in constants(graph).values()}
    for attribute in (name for name, value in facts.plain.items() if id(value) in held):
        raise ValueError(
            f"{what} reads the tensor {attribute!r}, which is no buffer: self.register_buffer makes it one"
        )
    traced = TracedFunction(what, graph, example, names[1 if held else 0] if names else None, facts.notes(), memory)
    if _waiting is None:
        if (refused := _refused.pop(traced.key, None) if _refused else None) is not None:
            raise refused
        return build([traced])[0], traced.notes
    _waiting.append(traced)
    return lambda inputs: list(graph(*inputs)), traced.notes


def _distinct(example: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor once: of two inputs that are one object a trace makes one input, whatever comes later."""
    seen: set[int] = set()
    return [value.clone() if id(value) in seen else (seen.add(id(value)) or value) for value in example]


_waiting: list[TracedFunction] | None = None  # in a rehearsal: what was asked for and is not there yet
_refused: dict[str, CompilationError] = {}  # of the last rehearsal, by key: what it could not build


@contextmanager
def side_by_side() -> Iterator[None]:
    """A rehearsal: functions asked for within are traced and run as they are; what was missing is built at the end.

    What cannot be built is logged at once, and is not tried again when the training asks for it.
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
    """Build functions together; those that cannot be built are logged, and the others are built without them."""
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
    """Tell whether a rehearsal goes on, as `side_by_side` begins one."""
    return _waiting is not None


def leave_as_written(what: str, began_with: str, began: bool, error: Exception, else_do: str = "") -> None:
    """Log that something runs as it is written, because it cannot be traced or compiled.

    Args:
        what: The function, for the message.
        began_with: What a run that `began` has of it, for the message.
        began: True if the run has learned with machine code of it.
        error: Why it cannot be traced or compiled.
        else_do: Another remedy, for the message of a run that began with it.

    Raises:
        RunError: If the run `began` with machine code, and there is none now.
        UserError: If the run `began` with machine code, and the function cannot be traced, as under another torch.
    """
    if isinstance(error, CompilationError):
        if began:
            raise RunError(f"this run began with {began_with}, and {what} cannot be compiled now: {error}") from error
        if not rehearsing():
            _warn(what, error)
        return
    if began:
        raise UserError(
            f"this run began with {began_with}, which torch {torch.__version__} cannot trace here "
            f"({first_line(error)}); go on with the version it began with{else_do}"
        ) from error
    if not rehearsing():
        log.warning("%s runs as it is written, not compiled: %s", what, first_line(error))


def _warn(what: str, error: CompilationError) -> None:
    if not error.logged:
        log.warning("%s is not compiled, training continues with it as it is written: %s", what, error)
    error.logged = True


@dataclass(frozen=True)
class Facts:
    """Facts that decide the code of a function before it is traced: then a start neither traces nor loads the compiler.

    Attributes:
        config: JSON: the algorithm's config, the environment's spec, what else the function is made from.
        seed: of the run; it counts where a function holds constants that may have been drawn.
        notes: what to remember of the trace, as the names of its outputs; JSON.
        made_of: the functions, objects and classes whose code is traced.
        plain: name -> tensor that may be another one later, so that a function which holds it is refused.
        prepare: called before a function is built that is not there, as by a rehearsal of all.
    """

    config: Any
    seed: int
    notes: Callable[[], Any]
    made_of: Sequence[Any]
    plain: Mapping[str, Tensor] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None

    def names(self, example: Sequence[Tensor]) -> list[str]:
        """Under which a function of these inputs is known, for any seed and for this one.

        None where code of somebody else's is in it: what that reads beside its inputs, nobody can tell untraced.
        """
        if not all(map(_own, self.made_of)):
            return []
        given = {"facts": self.config, "code": CODE, "inputs": [shape(value) for value in example], **machine()}
        texts = (json.dumps([given, seed], sort_keys=True, default=str) for seed in (None, self.seed))
        return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _own(part: Any) -> bool:
    """Tell whether a function, with what it is a method of, or a module, with all in it, is rlcore's or torch's."""
    if isinstance(part, torch.nn.Module):
        return all(_of_ours(type(module)) for module in part.modules())
    return _of_ours(part) and _of_ours(type(getattr(part, "__self__", torch.nn.Module())))


def _of_ours(code: Any) -> bool:
    return str(getattr(code, "__module__", None)).partition(".")[0] in ("rlcore", "torch")


def code_digest() -> str:
    """SHA-256 of every source file of rlcore as it is now."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


CODE = code_digest()  # at the import: what is edited later does not run in this process


def _find_known(names: Sequence[str]) -> tuple[Compiled, Any] | None:
    """The function that an earlier start traced, where its package is whole."""
    folder = cache_folder()
    for name in names:
        with suppress(OSError):
            entry = json.loads(find(folder, name, "json") or "{}")
            if entry and (package := find(folder, entry["package"])) is not None:
                return load(package), entry["notes"]
    return None
