"""Signature of a policy: every array that it takes and gives, by name. Serving, MLflow and model pages read it here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlcore.spec import ArraySpec

SAID = ("logprob", "value")  # of what an agent says beside its action, parts that are served


@dataclass(frozen=True)
class Column:
    """One array.

    Attributes:
        name: an observation's key, `is_first`, `action`, `logprob`, `value`, or a place in the carry, `carry.lstm.0`.
        kind: of an observation "vector", "image", "mask" or "goal"; "carry"; else its name.
        shape: without the batch N, which is first.
        dtype: NumPy's name.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, ('N', *self.shape)))}]"


@dataclass(frozen=True)
class Signature:
    """Arrays in and arrays out; what is carried comes out as it is to come in with the next observations."""

    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]

    @property
    def by_name(self) -> bool:
        """True where arrays are taken by name: a single observation key, without a carry, is an array alone."""
        return len(self.inputs) > 1

    @property
    def carry(self) -> tuple[Column, ...]:
        """Columns of the carry."""
        return tuple(column for column in self.inputs if column.kind == "carry")


def signature_of(
    specs: Mapping[str, ArraySpec], carry: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> Signature:
    """The signature of a policy.

    Args:
        specs: of the observation keys that it reads.
        carry: at the start of an episode, by name, [1, ...] each.
        given: its answer to an observation: `action` and what it said beside it, by name, [1, ...] each.

    Returns:
        The table.
    """
    obs = [Column(key, spec.kind, spec.shape, spec.dtype) for key, spec in specs.items()]
    opens = [Column("is_first", "is_first", (), "bool")] if carry else []
    carried = [Column(name, "carry", part.shape[1:], str(part.dtype)) for name, part in carry.items()]
    said = [Column(name, name, part.shape[1:], str(part.dtype)) for name, part in given.items()]
    return Signature((*obs, *opens, *carried), (*said, *carried))
