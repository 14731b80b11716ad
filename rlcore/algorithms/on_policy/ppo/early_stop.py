"""Early stop of an update of PPO, if the policy has changed too much (config key `target_kl`).

On a GPU, the remaining gradient steps are computed but change nothing, because reading the flag would wait for the GPU,
which a CUDA graph cannot do. On a CPU, they are not computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.functional.stats import mean_metrics, mean_where
from rlcore.types import Metrics, SingleProcess

GRAD_NORM, STEPS, STOP = "Info/grad_norm", "steps", "stop"  # names of metrics; the trainer does not see the last two


def ends_loop(stop: Tensor, reads: bool) -> bool:
    """Return True if the remaining gradient steps of an update need not be computed.

    `stop` [] bool is True if the KL divergence has exceeded its limit. `reads` is True if gradient steps read values of
    tensors in any case, as with float16.
    """
    return (reads or stop.is_cpu) and bool(stop)


def average_steps(logged: Sequence[Metrics]) -> Metrics:
    """Average the metrics of the gradient steps of an update.

    Args:
        logged: metrics of each gradient step. With a KL stop, `stop` [] bool is True from the first step that was
            skipped on.

    Returns:
        name -> mean [] over the steps that were taken and the first one that was skipped. The gradient norm is averaged
        only over the steps that were taken. `steps` [] is the number of steps that were taken.
    """
    if not logged or STOP not in logged[0]:
        return mean_metrics(logged, SingleProcess()) | {STEPS: torch.tensor(len(logged))}
    skipped = torch.stack([found[STOP] for found in logged])  # [K]
    after = torch.cat([torch.zeros_like(skipped[:1]), skipped[:-1]])  # [K]; steps after the first one that was skipped
    means = {
        name: mean_where(torch.stack([found[name] for found in logged]), ~(skipped if name == GRAD_NORM else after))
        for name in logged[0]
        if name != STOP
    }
    return means | {STEPS: (~skipped).sum()}
