"""Protocols of the config groups from which world models are built.

`world_keys` has the groups of Dreamer V1, V2 and V3. An algorithm can have groups with other keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rlcore.algorithms.dreamer.world_keys import CNNSpec, InitConfig, MLPSpec


class LayersGroup(Protocol):
    """Config keys of the hidden layers of a network."""

    @property
    def layers(self) -> MLPSpec:
        """Settings of the hidden layers."""
        ...


class RecurrentGroup(LayersGroup, Protocol):
    """Config keys of the recurrent cell, and of the dense layer before it."""

    @property
    def recurrent_state_size(self) -> int:
        """Size of the deterministic state h."""
        ...

    @property
    def cell(self) -> InitConfig | None:
        """Settings that are passed to the factory of the recurrent cell (`networks.Networks.cell`)."""
        ...


class ObservationGroup(LayersGroup, Protocol):
    """Config keys of an observation encoder or decoder."""

    @property
    def symlog(self) -> bool:
        """True if vectors are encoded and reconstructed in symlog space."""
        ...

    @property
    def stages(self) -> CNNSpec:
        """Settings that are passed to the factories of the CNNs (`networks.Networks`)."""
        ...


class WorldGroup(Protocol):
    """Config keys of a world model."""

    @property
    def encoder(self) -> ObservationGroup:
        """Encoder of observations."""
        ...

    @property
    def recurrent_model(self) -> RecurrentGroup:
        """Recurrent cell."""
        ...

    @property
    def prior(self) -> MLPSpec:
        """Settings of the hidden layers of the prior."""
        ...

    @property
    def posterior(self) -> MLPSpec:
        """Settings of the hidden layer of the posterior."""
        ...

    @property
    def observation_model(self) -> ObservationGroup:
        """Decoder of observations."""
        ...

    @property
    def reward_model(self) -> LayersGroup:
        """Reward head."""
        ...

    @property
    def discount_model(self) -> LayersGroup:
        """Continue head."""
        ...

    @property
    def decoupled(self) -> bool:
        """True if the posterior depends only on the observation, not on the recurrent state."""
        ...

    @property
    def begin(self) -> str:
        """Kind of the model state at the start of an episode; see `state_keys.StateKeys.begin`."""
        ...

    @property
    def ends(self) -> bool:
        """True if the world model has a continue head."""
        ...
