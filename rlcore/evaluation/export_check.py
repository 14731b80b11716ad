"""Comparison of an exported file with the policy itself, on random inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from rlcore import streams
from rlcore.errors import RunError
from rlcore.evaluation.greedy_policy import GreedyPolicy
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.signature import SAID
from rlcore.spec import ActionSpec, ArraySpec

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-5  # of numbers up to 1; of larger numbers relative to them
BATCHES = (1, 2, 32)  # sizes of the batches that are compared
STEPS = 6  # time steps per batch
CHANGE = 1e-6  # relative change of the weights that shows whether rounding errors decide a choice
CHANGES = 8  # number of random changes


class Agreement(NamedTuple):
    """Result of a comparison.

    Attributes:
        rows: number of compared observations.
        undecided: number of further observations for which rounding errors decide a choice, such as an action.
        difference: largest difference, absolute for numbers up to 1 and relative for larger ones.
    """

    rows: int
    undecided: int
    difference: float


def compare(policy: LoadedPolicy, module: GreedyPolicy, run: Callable[[Arrays], Arrays], what: str) -> Agreement:
    """Compare an exported file with the policy from which it was written.

    Observations are random. Each time step of a recurrent policy starts from the carry that the policy itself returned,
    and some rows start new episodes. Continuous outputs must agree within `TOLERANCE`. Discrete outputs must be equal:
    discrete actions, and categorical states in the carry. There is one exception: a row is ignored if rounding errors
    decide a choice in it, because the two best choices have the same probability up to a rounding error. In this case,
    random changes of the policy's weights by about a millionth also change a choice in this row.

    Args:
        policy: trained policy.
        module: the policy as a function of named tensors; it has the names of the outputs.
        run: the exported file as a function from inputs, name -> [N, ...], to outputs.
        what: name of the file, for the error message.

    Returns:
        The number of compared rows and the largest difference.

    Raises:
        RunError: If continuous outputs differ by more than `TOLERANCE`, if discrete outputs differ for another reason
            than rounding errors, or if outputs have other shapes or dtypes.
    """
    rng, changed = streams.generator(0, "probe"), list[LoadedPolicy]()
    rows = undecided = 0
    largest = 0.0
    for size in BATCHES:
        carry = policy.initial_carry(size)
        for step in range(STEPS):
            given = random_observations(policy, size, rng)
            if carry:
                given |= {"is_first": rng.random(size) < 0.2 if step else np.ones(size, bool), **carry}
            expected, outputs = policy.exchange(given), run(given)
            found = {name: outputs[to] for name, to in module.renamed.items()}
            differences = _differences(policy, expected, found, what)
            other = np.any([part.other_choice for part in differences.values()], 0)
            if other.any():
                changed = changed or [_change_weights(policy, rng) for _ in range(CHANGES)]
                changes = [_differences(policy, expected, each.exchange(given), what) for each in changed]
                _check_choices(differences, changes, what)
            largest = max(largest, _check_numbers(differences, ~other, what))
            rows, undecided = rows + int((~other).sum()), undecided + int(other.sum())
            carry = {name: expected[name] for name in carry}
    if rows < undecided:
        raise RunError(
            f"{what}: rounding errors decide {undecided} of {rows + undecided} actions, so the file cannot be "
            "compared with the policy; the file was not written; train the policy for longer"
        )
    return Agreement(rows, undecided, largest)


def random_observations(policy: LoadedPolicy, rows: int, rng: np.random.Generator) -> Arrays:
    """Draw observations, key -> [rows, ...], for all keys that the policy reads; their action masks allow an action."""
    specs = {key: policy.spec.obs[key] for key in policy.obs_keys}
    obs = {key: _draw(spec, rows, rng) for key, spec in specs.items()}
    masks = {key: obs[key] for key in policy.spec.mask_keys if key in obs}
    if masks and (nothing := policy.spec.nothing_allowed(masks, np.concatenate)) is not None:
        for mask in masks.values():
            mask[nothing] = 1
    return obs


def _draw(spec: ArraySpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    shape = (rows, *spec.shape)
    if spec.n is not None:
        return rng.integers(spec.start, spec.start + spec.n, shape).astype(spec.dtype)
    if spec.kind == "mask":
        return (rng.random(shape) < 0.7).astype(spec.dtype)
    if spec.dtype == "bool":
        return rng.random(shape) < 0.5
    low, high = spec.bounds or (None, None)
    if np.dtype(spec.dtype).kind in "iu":
        info = np.iinfo(spec.dtype)
        least, most = (default if edge is None else int(edge) for default, edge in ((-128, low), (255, high)))
        return rng.integers(max(info.min, least), min(info.max, most), shape, endpoint=True).astype(spec.dtype)
    if low is not None and high is not None and high - low < 1000:
        return rng.uniform(low, high, shape).astype(np.float32).astype(spec.dtype)
    scale = 10 ** rng.uniform(-2, 1, (rows, *[1] * len(spec.shape)))
    return np.clip(rng.standard_normal(shape) * scale, low, high).astype(np.float32).astype(spec.dtype)


class _Difference(NamedTuple):
    """Difference of an output from the expected one in N rows.

    Attributes:
        error: [N], largest difference; absolute for numbers up to 1 and relative for larger ones.
        other_choice: [N] bool, True if an element with a discrete value differs.
    """

    error: np.ndarray
    other_choice: np.ndarray


def _differences(
    policy: LoadedPolicy, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], what: str
) -> dict[str, _Difference]:
    """Compare all outputs, name -> [N, ...], with the expected ones; return name -> difference."""
    differences: dict[str, _Difference] = {}
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape or found[name].dtype != wanted.dtype:
            forms = [f"{array.dtype} {list(array.shape)}" for array in (found[name], wanted)]
            raise RunError(f"{what}: the output {name!r} is {forms[0]} instead of {forms[1]}; the file was not written")
        x, y = (array.astype(np.float64).reshape(len(wanted), -1) for array in (found[name], wanted))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            error = np.nan_to_num(np.where(same, 0, np.abs(x - y) / np.maximum(1, np.abs(y))), nan=np.inf)
        if name == "action":
            discrete = _discrete(policy.spec.action)
        else:  # a state of the carry can be a one-hot vector of floats
            discrete = wanted.dtype.kind in "iub" or ((_is_bit(x) & _is_bit(y)) if name not in SAID else False)
        differences[name] = _Difference(error.max(1, initial=0), (~same & discrete & (error > TOLERANCE)).any(1))
    return differences


def _discrete(action: ActionSpec) -> np.ndarray:
    """Return [elements] bool for an action in the environment's format, flattened: True if its value is a choice."""
    return np.concatenate([np.full(part.width, not part.continuous) for part in action.parts or (action,)])


def _check_choices(
    differences: Mapping[str, _Difference], changes: Sequence[Mapping[str, _Difference]], what: str
) -> None:
    """Raise a RunError if a choice differs in a row in which no change of the weights (`changes`) changes one."""
    tied = np.any([part.other_choice for parts in changes for part in parts.values()], 0)
    for name, part in differences.items():
        if (part.other_choice & ~tied).any():
            raise RunError(
                f"{what}: for a random observation, the output {name!r} is another choice than that of the policy; the "
                "file was not written"
            )


def _check_numbers(differences: Mapping[str, _Difference], rows: np.ndarray, what: str) -> float:
    """Return the largest error in the rows that are selected by a mask [N]; raise a RunError if it is too large."""
    errors = {name: float(part.error[rows].max(initial=0)) for name, part in differences.items()}
    name = max(errors, key=lambda name: errors[name])
    if errors[name] > TOLERANCE:
        raise RunError(
            f"{what}: for a random observation, the output {name!r} differs by {errors[name]:.2g} from that of the "
            f"policy, but at most {TOLERANCE:g} is allowed; the file was not written"
        )
    return errors[name]


def _is_bit(x: np.ndarray) -> np.ndarray:
    """Return where `x` is 0 or 1 up to a rounding error, bool of the same shape."""
    return np.minimum(np.abs(x), np.abs(x - 1)) <= TOLERANCE


def _change_weights(policy: LoadedPolicy, rng: np.random.Generator) -> LoadedPolicy:
    """Return a copy of a policy with weights changed at random by about a millionth."""
    policy, generator = copy.deepcopy(policy), torch.Generator().manual_seed(int(rng.integers(1 << 31)))
    for weight in policy.agent.parameters():
        if weight.is_floating_point():
            weight.data *= 1 + CHANGE * torch.randn(weight.shape, generator=generator)
    return policy
