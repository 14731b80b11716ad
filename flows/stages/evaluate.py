"""evaluate: judge a checkpoint, a run or a registered model."""

from __future__ import annotations

from typing import Any

from rlcore.store.directory import RunDirectory


def evaluate_checkpoint(
    run: RunDirectory, checkpoint: str | int = "latest", episodes: int = 100, greedy: bool = True, round: int = 1
) -> dict[str, Any]:
    """Play whole episodes with the policy of a checkpoint.

    Args:
        run: whose environment and seed.
        checkpoint: latest, best or a number of env steps.
        episodes: N.
        greedy: most likely actions instead of samples.
        round: set of environment seeds; 0 judges while training, 1 at the end, any other is fresh.

    Returns:
        mean, std, ci95, episodes, returns, mean_length.
    """
    from rlcore.judge import final as judge
    from rlcore.store import checkpoint as checkpoints

    path = checkpoints.resolve(run, checkpoint)
    return judge.evaluate_checkpoint(run, path, episodes, greedy=greedy, round=round)
