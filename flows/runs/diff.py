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
from rlcore.train.resume_rules import other_learning

MEANING = {  # meaning of a difference, for each of the two parts of a fingerprint
    "learning": "this affects what is learned",
    "machine": "identical bits are guaranteed only on the same machine with the same code",
}
ATTEMPTS = 5  # a run in training may remove the checkpoint that was just chosen


def diff(first: str, second: str) -> int:
    """Compare the learning states of two checkpoints and print the result. Return 0 if all bits are equal, else 1.

    If an argument is a run directory, one of its checkpoints is compared: the newest intact one at a policy step at
    which the other run has a checkpoint, too.
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
    places = _places(first, second)
    differing = list(compare.differences(*places))
    names = " and ".join(short_path(place) for place in places)
    short = [line for whole, place in zip((first, second), places, strict=True) if (line := _beyond(whole, place))]
    if not differing:
        digest = checkpoint.manifest(places[0])["digest"]
        return 0, [f"identical: {names} (digest {digest[:16]})", *short]
    others = f" ({len(differing) - 1:,} more entries differ)" if len(differing) > 1 else ""
    return 1, [f"different: {names}", f"first difference: {differing[0]}{others}", *short, *_reasons(*places)]


def _beyond(whole: Path, place: Path) -> str | None:
    """Return a line of output if the run has a later checkpoint than the compared one, otherwise None."""
    newest = next(checkpoint.newest_first(whole / "checkpoints"), place)
    if newest.name == place.name:
        return None
    wrong = checkpoint.damage(newest, with_chunks=False)
    damaged = f", damaged: {wrong}" if wrong else ""
    return f"  {short_path(whole)} has a checkpoint at {newest.name} policy steps{damaged}; compared at {place.name}"


def _places(first: Path, second: Path) -> tuple[Path, Path]:
    """Return the two checkpoints to compare: the newest ones at a policy step that both runs have.

    If there is no common policy step and the fingerprints differ, return the newest checkpoint of each run.
    """
    try:
        return compare.common(first, second)
    except compare.NothingInCommonError:
        left, right = (checkpoint.newest_good(place / "checkpoints") for place in (first, second))
        if left is None or right is None:
            raise
        if not any(list(_differing(half, *_fingerprints(left, right))) for half in MEANING):
            raise
        return left, right


def _fingerprints(*places: Path) -> list[dict[str, Any]]:
    return [checkpoint.load(place)[1]["fingerprint"] for place in places]


def _differing(half: str, left: dict[str, Any], right: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    return (other_learning if half == "learning" else differences)(left[half], right[half])


def _reasons(first: Path, second: Path) -> list[str]:
    """Return possible reasons for different bits, derived from the two fingerprints and the two environment cards."""
    reasons = []
    moments = [checkpoint.manifest(place)["policy_steps"] for place in (first, second)]
    if moments[0] != moments[1]:
        reasons.append(f"  the policy steps of the checkpoints differ: {moments[0]} and {moments[1]}")
    for half, meaning in MEANING.items():
        differing = _differing(half, *_fingerprints(first, second))
        reasons += [f"  {key}: {before} and {after}; {meaning}" for key, before, after in differing]
    runs = [RunDirectory(place.parents[1]) for place in (first, second)]
    cards = [run.read_card() for run in runs if run.card.exists()]
    if vague := next((card["id"] for card in cards if card.get("deterministic") is False), None):
        reasons.append(f"  {vague}: the same seed and actions give different episodes, so its runs always differ")
    return reasons or ["  config, versions and machine are the same, so this is a bug; please report it"]
