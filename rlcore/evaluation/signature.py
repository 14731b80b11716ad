"""Signature of a policy: names, shapes and dtypes of its inputs and outputs, for serving, MLflow and model pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlcore.spec import ArraySpec

SAID = ("logprob", "value")  # extra outputs of an agent that servers return in addition to the action


@dataclass(frozen=True)
class Column:
    """Name, shape and dtype of an input or output array.

    Attributes:
        name: an observation key, `is_first`, `action`, `logprob`, `value`, or a tensor of the carry (`carry.lstm.0`).
        kind: "vector", "image", "mask" or "goal" for an observation; "carry" for a tensor of the carry; otherwise equal
            to `name`.
        shape: shape without the batch dimension N, which is the first dimension of the array.
        dtype: name of the NumPy dtype.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, ('N', *self.shape)))}]"


@dataclass(frozen=True)
class Signature:
    """Names, shapes and dtypes of the input and output arrays of a policy.

    A recurrent policy also has the arrays of its carry (recurrent state): those that it returns are inputs of the next
    call.
    """

    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]

    @property
    def by_name(self) -> bool:
        """True if inputs are passed as a dict by name; False if the only input is one observation array."""
        return len(self.inputs) > 1

    @property
    def carry(self) -> tuple[Column, ...]:
        """Input arrays that belong to the carry (recurrent state); () if the policy is feed-forward."""
        return tuple(column for column in self.inputs if column.kind == "carry")


def signature_of(
    specs: Mapping[str, ArraySpec], carry: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> Signature:
    """Build the signature of a policy.

    Args:
        specs: specs of the observation keys that the policy reads.
        carry: initial carry (recurrent state) of one environment, name -> [1, ...]; {} if the policy is feed-forward.
        given: outputs of the policy for one example observation, name -> [1, ...]: `action` and, if the policy returns
            them, `logprob` and `value`.

    Returns:
        The signature of the policy.
    """
    obs = [Column(key, spec.kind, spec.shape, spec.dtype) for key, spec in specs.items()]
    opens = [Column("is_first", "is_first", (), "bool")] if carry else []
    carried = [Column(name, "carry", part.shape[1:], str(part.dtype)) for name, part in carry.items()]
    outputs = [Column(name, name, part.shape[1:], str(part.dtype)) for name, part in given.items()]
    return Signature((*obs, *opens, *carried), (*outputs, *carried))
