"""`shepherd diff`: check whether two runs or checkpoints are bit-identical.

If they are not, the output lists possible reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.report.command_lines import short_path
from rlcore.errors import UserError
from rlcore.store import checkpoint, compare
from rlcore.store.directory import RunDirectory
from rlcore.system.printable import print_safely
from rlcore.train.fingerprint import differences
from rlcore.train.resume import other_learning

MEANING = {  # meaning of a difference, for each of the two parts of a fingerprint
    "learning": "this affects what is learned",
    "machine": "identical bits are guaranteed only on the same machine with the same code",
}
ATTEMPTS = 5  # a run in training may remove the checkpoint that was just chosen


def diff(first: str, second: str) -> int:
    """Compare the learning states of two checkpoints and print the result. Return 0 if all bits are equal, else 1.

    An argument is a checkpoint or a run directory. For a run directory, the newest intact checkpoint is compared whose
    policy step also exists in the other argument.
    """
    for attempt in range(ATTEMPTS):
        try:
            code, lines = _compare(Path(first).absolute(), Path(second).absolute())
            break
        except (UserError, OSError):
            if attempt == ATTEMPTS - 1:
                raise
    print_safely("\n".join(lines))
    return code


def _compare(first: Path, second: Path) -> tuple[int, list[str]]:
    """Return the exit code and the lines to print."""
    paths = _choose_checkpoints(first, second)
    differing = list(compare.differences(*paths))
    names = " and ".join(short_path(path) for path in paths)
    later = [line for run, path in zip((first, second), paths, strict=True) if (line := _describe_later(run, path))]
    if not differing:
        digest = checkpoint.manifest(paths[0])["digest"]
        return 0, [f"identical: {names} (digest {digest[:16]})", *later]
    others = f" ({len(differing) - 1:,} more entries differ)" if len(differing) > 1 else ""
    return 1, [f"different: {names}", f"first difference: {differing[0]}{others}", *later, *_reasons(*paths)]


def _describe_later(run: Path, compared: Path) -> str | None:
    """Return a line of output if a run has a later checkpoint than the compared one, otherwise None."""
    newest = next(checkpoint.newest_first(run / "checkpoints"), compared)
    if newest.name == compared.name:
        return None
    wrong = checkpoint.damage(newest, with_chunks=False)
    damaged = f", damaged: {wrong}" if wrong else ""
    return f"  {short_path(run)} has a checkpoint at {newest.name} policy steps{damaged}; compared at {compared.name}"


def _choose_checkpoints(first: Path, second: Path) -> tuple[Path, Path]:
    """Return the two checkpoints to compare: the newest ones at a policy step that both runs have.

    If the runs have no common policy step and their fingerprints (config and machine) differ, return the newest
    checkpoint of each run.
    """
    try:
        return compare.common(first, second)
    except compare.NothingInCommonError:
        left, right = (checkpoint.newest_good(run / "checkpoints") for run in (first, second))
        if left is None or right is None:
            raise
        if not any(list(_differing(half, *_fingerprints(left, right))) for half in MEANING):
            raise
        return left, right


def _fingerprints(*checkpoints: Path) -> list[dict[str, Any]]:
    return [checkpoint.load(path)[1]["fingerprint"] for path in checkpoints]


def _differing(half: str, left: dict[str, Any], right: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    return (other_learning if half == "learning" else differences)(left[half], right[half])


def _reasons(first: Path, second: Path) -> list[str]:
    """Return possible reasons why two checkpoints differ, one line each.

    They are derived from the fingerprints in the checkpoints (config and machine) and from the environment cards
    (measured properties of the environments).
    """
    reasons = []
    steps = [checkpoint.manifest(path)["policy_steps"] for path in (first, second)]
    if steps[0] != steps[1]:
        reasons.append(f"  the policy steps of the checkpoints differ: {steps[0]} and {steps[1]}")
    for half, meaning in MEANING.items():
        differing = _differing(half, *_fingerprints(first, second))
        reasons += [f"  {key}: {left} and {right}; {meaning}" for key, left, right in differing]
    runs = [RunDirectory(path.parents[1]) for path in (first, second)]
    cards = [run.read_card() for run in runs if run.card.exists()]
    if vague := next((card["id"] for card in cards if card.get("deterministic") is False), None):
        reasons.append(f"  {vague}: the same seed and actions give different episodes, so its runs always differ")
    return reasons or ["  config, versions and machine are the same, so this is a bug; please report it"]
