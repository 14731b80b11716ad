"""Training as experiment stages: plain functions, and the Prefect tasks, MLflow mirror and registry around them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlcore.judge.policy import Policy


def load_policy(path_or_uri: str | Path) -> Policy:
    """A trained policy, ready for `predict(obs)`, or `step(obs, carry)` where it remembers.

    Args:
        path_or_uri: run directory, checkpoint directory, exported policy folder, or `models:/NAME@champion`.

    Returns:
        The policy.

    Raises:
        UserError: there is no such policy.
    """
    from rlcore.judge.policy import load_policy as load

    if str(path_or_uri).startswith("models:/"):
        from flows.registry.models import resolve_uri  # every command imports flows first

        path_or_uri = resolve_uri(str(path_or_uri))
    return load(path_or_uri)


__all__ = ["load_policy"]
