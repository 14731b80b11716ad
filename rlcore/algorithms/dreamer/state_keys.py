"""Properties that the config groups of world models share: kind of the model state, and of the end of an episode."""

from __future__ import annotations


class StateKeys:
    """Base class of the config groups of world models; a subclass overrides what differs."""

    @property
    def decoupled(self) -> bool:
        """True if the posterior depends only on the observation, not on the recurrent state."""
        return False

    @property
    def begin(self) -> str:
        """Kind of the model state at the start of an episode: "zeros", "prior" or "learned".

        The model state has a deterministic part h and a stochastic part z. "zeros": h = z = 0. "prior": h = 0, and z is
        the mode of the prior p(z | h). "learned": h is the tanh of a trained parameter, and z is the mode of the prior
        p(z | h).
        """
        return "zeros"

    @property
    def ends(self) -> bool:
        """True if the world model has a continue head, which predicts whether an imagined episode continues."""
        return True
