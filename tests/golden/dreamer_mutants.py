"""Mutants of all Dreamers: of the state, of the rows that predict it, and of returns."""

from __future__ import annotations

from tests.golden.mutants import Mutant, swap

Check = tuple[str, ...]


def of_all(model_loss: str, few: Check, ends: Check) -> tuple[Mutant, ...]:
    """Return the mutants of one version.

    Args:
        model_loss: the function with the loss of the world model.
        few: check with discrete actions, which detects most mutants.
        ends: check with a continue head, on rows that are terminated and truncated.
    """
    segment = "Segment(steps.obs, before, is_first, steps.reward, steps.terminated)"
    rows, opens = "segment_of", "open_at_first_row"
    return (
        Mutant("state not forgotten", "RSSM._move", swap("torch.where(A, B, C)", "C"), few),
        Mutant("action before not forgotten", "RSSM._move", swap("prev_action.masked_fill(A, 0)", "prev_action"), few),
        Mutant(
            "reward one step early",
            rows,
            swap(segment, segment.replace("steps.reward", "steps.reward.roll(-1, 0)")),
            few,
        ),
        Mutant("action one step late", opens, swap("torch.cat([A, action[:-1]])", "action"), few),
        Mutant(
            "truncation as end",
            rows,
            swap(segment, segment.replace("steps.terminated", "(steps.terminated | steps.truncated)")),
            ends,
        ),
        Mutant("ends taught as going on", model_loss, swap("~batch.terminated", "batch.terminated"), ends),
        Mutant("λ-return ends without a value", "lambda_return", swap("discount[-1:]", "0 * discount[-1:]"), few),
        Mutant("norm of another", "DreamerBehavior.train", swap("actor.norm", "critic.norm"), ("check_update",)),
    )
