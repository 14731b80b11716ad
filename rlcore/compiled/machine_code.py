"""Functions on tensors as machine code, which is loaded from the cache, or traced and compiled.

A run calls its functions one after the other; for example, it needs policy inference long before the first gradient
step. To compile all functions in parallel, training starts with a warm-up that calls each of them once with eager code
(`side_by_side`). At the end of the warm-up, all functions that are not in the cache are compiled together.
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
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from rlcore.compiled import scan
from rlcore.compiled.package import Compiled, TracedFunction, build, cache_folder, constants, find, load, machine, shape
from rlcore.errors import CompilationError, RunError, UserError, first_line
from rlcore.system.training_clock import not_training

if TYPE_CHECKING:
    from torch.fx import GraphModule

log = logging.getLogger(__name__)
# MKL processes few columns at a time if their number is small and not a multiple of 16. The gradient [256, 6] of the
# weights of a first layer, for 512 samples, takes 170 µs in the original form and 33 µs transposed.
MANY, ABREAST, TALL = 64, 16, 64


def trace(function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor]) -> GraphModule:
    """Trace the operations of a function to a graph, including the gradients that the function computes.

    Args:
        function: function of tensors.
        example: example inputs. The graph is valid only for inputs of their shapes and dtypes.

    Returns:
        The traced graph.
    """
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


def turn_thin_products(graph: GraphModule) -> GraphModule:
    """Replace each float32 product A B [M, N] with many rows and few columns by (Bᵀ Aᵀ)ᵀ in a traced graph.

    On the CPU, this gives the same numbers up to 5 times as fast.

    Args:
        graph: the traced graph; changed in place. Products with M >= 64 and 1 < N < 64 are replaced, except those with
            N a multiple of 16.

    Returns:
        The same graph.
    """
    mm, t, clone = torch.ops.aten.mm.default, torch.ops.aten.t.default, torch.ops.aten.clone.default
    call: Any = graph.graph.call_function
    as_before = {"memory_format": torch.contiguous_format}
    for node in graph.graph.find_nodes(op="call_function", target=mm):
        result = node.meta["val"]
        rows, columns = result.shape
        if result.dtype == torch.float32 and rows >= TALL and 1 < columns < MANY and columns % ABREAST:
            with graph.graph.inserting_before(node):
                one, other = node.args
                turned = call(mm, (call(t, (other,)), call(t, (one,))))
                node.replace_all_uses_with(call(clone, (call(t, (turned,)),), as_before))
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


@not_training()
def make_once(
    what: str,
    function: Callable[..., tuple[Tensor, ...]],
    example: Sequence[Tensor],
    facts: Facts,
    memory: Sequence[int] = (),
) -> tuple[Compiled, Any]:
    """Return machine code for a function of tensors, from the cache or compiled now.

    The function is traced only if its machine code is not in the cache. During a warm-up (`side_by_side`), a traced
    function is compiled later, and the eager graph is returned instead.

    Args:
        what: description of the function for messages, such as "the gradient step".
        function: function of tensors. All other values that it reads must be constant during the run.
        example: example inputs. The machine code accepts only contiguous tensors with their shapes and dtypes.
        facts: inputs of the cache key, except the source code of rlcore, which is always part of the key.
        memory: indices of inputs that contain optimizer state; the outputs with these indices are its new values.

    Returns:
        The machine code as a function (list of inputs -> list of outputs), and the result of `facts.notes()` from the
        time at which the function was traced.

    Raises:
        CompilationError: if the function cannot be compiled, or the machine code computes wrong results.
        ValueError: if the function reads a tensor of `facts.plain`, which would become a constant in machine code.
    """
    example = _distinct(example)
    names = facts.names(example)
    known = _find_known(names)
    if known is None and names and _waiting is None:
        facts.prepare()
        known = _find_known(names)
    if known is not None:
        return known
    graph = trace(function, example)
    if any(isinstance(value, torch.nn.Parameter) for value in (*vars(graph).values(), *graph.parameters())):
        raise CompilationError(
            f"{what} reads parameters that are not its inputs; pass the module that contains them to the optimizer "
            "in the argument `uses`"
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
        if not names and find(cache_folder(), traced.key) is None:
            facts.prepare()
        if (refused := _refused.pop(traced.key, None) if _refused else None) is not None:
            raise refused
        return build([traced])[0], traced.notes
    _waiting.append(traced)
    return lambda inputs: list(graph(*inputs)), traced.notes


def _distinct(example: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors, with repeated ones cloned: tracing would treat the same object as a single input."""
    seen: set[int] = set()
    return [value.clone() if id(value) in seen else (seen.add(id(value)) or value) for value in example]


_waiting: list[TracedFunction] | None = None  # in a warm-up: functions that were requested and are not built yet
_refused: dict[str, CompilationError] = {}  # by key: functions that could not be built after the last warm-up


@contextmanager
def side_by_side() -> Iterator[None]:
    """Context manager for a warm-up: functions requested inside it run as eager code and are compiled when it ends.

    If a function cannot be compiled, a warning is logged. Training does not try again to compile it.
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
    """Compile functions in parallel; if some of them fail, log a warning for each and compile the remaining ones."""
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


def in_warm_up() -> bool:
    """Return True during a warm-up (inside `side_by_side`), in which functions are not compiled yet."""
    return _waiting is not None


def leave_as_written(what: str, began_with: str, began: bool, error: Exception, else_do: str = "") -> None:
    """Log a warning that a function runs as eager code; if the run must use compiled code, raise an error instead.

    A resumed run must compute in the same way as before: eager code and compiled code round differently.

    Args:
        what: description of the function, such as "the gradient step".
        began_with: description of the compiled function, such as "compiled gradient steps"; used if `began` is True.
        began: True if the run used the compiled function in earlier updates.
        error: error of tracing or compilation.
        else_do: end of the error message that names a second way to fix the problem; used if `began` is True.

    Raises:
        RunError: if `began` is True, and the function cannot be compiled.
        UserError: if `began` is True, and the function cannot be traced, for example with another version of torch.
    """
    if isinstance(error, CompilationError):
        if began:
            raise RunError(f"the run began with {began_with}, but {what} cannot be compiled now: {error}") from error
        if not in_warm_up():
            _warn(what, error)
        return
    if began:
        raise UserError(
            f"the run began with {began_with}, but torch {torch.__version__} cannot trace it now "
            f"({first_line(error)}); resume the run with the version of torch that it began with{else_do}"
        ) from error
    if not in_warm_up():
        log.warning("%s is not compiled and runs as eager code: %s", what, first_line(error))


def _warn(what: str, error: CompilationError) -> None:
    if not error.logged:
        log.warning("%s is not compiled; training continues with eager code: %s", what, error)
    error.logged = True


@dataclass(frozen=True)
class Facts:
    """Inputs of a function's cache key that are known before the function is traced.

    If the cache contains machine code for the key, the function need not be traced, and torch's compiler is not loaded.

    Attributes:
        config: JSON value with everything that affects the traced operations: config of the algorithm, spec of the
            environment and similar inputs. None: no such value is known, so the function is always traced.
        seed: seed of the run. It is part of the key only if the traced function contains constant tensors, because
            these may have been drawn at random.
        notes: function that returns a JSON value to store with the machine code, such as the names of the outputs.
        made_of: functions, objects and classes whose code is traced.
        plain: name -> tensor that may be replaced by another one during the run. If the function reads such a tensor,
            it is not compiled, because the machine code would keep the old tensor.
        prepare: function that is called if the machine code is not in the cache; it can compile all functions of the
            run in a warm-up.
    """

    config: Any
    seed: int
    notes: Callable[[], Any]
    made_of: Sequence[Any]
    plain: Mapping[str, Tensor] = field(default_factory=dict)
    prepare: Callable[[], None] = lambda: None

    def names(self, example: Sequence[Tensor]) -> list[str]:
        """Return the cache keys of a function with these example inputs: one without and one with the run's seed.

        There is no key if `config` is None, or if the function contains code from packages other than rlcore and torch.
        Such code may depend on values that no key contains, so it must always be traced.
        """
        if self.config is None or not all(map(_own, self.made_of)):
            return []
        given = {"facts": self.config, "code": CODE, "inputs": [shape(value) for value in example], **machine()}
        texts = (json.dumps([given, seed], sort_keys=True, default=str) for seed in (None, self.seed))
        return [hashlib.sha256(text.encode()).hexdigest() for text in texts]


def _own(part: Any) -> bool:
    """Return True if the code of `part` is defined in the packages rlcore or torch.

    For a method, the class of its object is checked too. For a module, the classes of all submodules are checked, and
    the classes and functions that their attributes contain.
    """
    if isinstance(part, torch.nn.Module):
        return all(_of_ours(code) for module in part.modules() for code in (type(module), *_stored_code(module)))
    return _of_ours(part) and _of_ours(type(getattr(part, "__self__", torch.nn.Module())))


def _stored_code(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the classes and functions in the attributes of a module, among them hooks and replaced methods."""
    for value in vars(module).values():
        for part in value.values() if isinstance(value, dict) else (value,):
            if isinstance(part, (type, FunctionType, MethodType)):
                yield part


def _of_ours(code: Any) -> bool:
    """Return True if a class or function is defined in rlcore or torch, and is not generated from other code."""
    package, _, rest = str(getattr(code, "__module__", None)).partition(".")
    return package == "rlcore" or (package == "torch" and not rest.startswith(("fx", "jit")))


def code_digest() -> str:
    """Return the SHA-256 of the names and contents of all source files of rlcore."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


CODE = code_digest()  # at import, because later edits do not affect this process


def _find_known(names: Sequence[str]) -> tuple[Compiled, Any] | None:
    """Return the machine code stored under the first known cache key, and its notes; None if there is none.

    Damaged files are ignored.
    """
    folder = cache_folder()
    for name in names:
        with suppress(OSError):
            entry = json.loads(find(folder, name, "json") or "{}")
            if entry and (package := find(folder, entry["package"])) is not None:
                return load(package), entry["notes"]
    return None
