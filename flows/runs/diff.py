"""`shepherd diff`: whether two runs or checkpoints learned the same bits; if not, where they part and why they may."""

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

MEANING = {  # of a difference in one half of the fingerprint
    "learning": "they learn different things",
    "machine": "the bits are promised for one machine and one version of the code",
}
ATTEMPTS = 5  # a run that is being trained may remove the checkpoint just chosen


def diff(first: str, second: str) -> int:
    """Compare the learning parts of two checkpoints and print what was found; 0 where every bit is the same, else 1.

    A run directory stands for its newest good checkpoint after as many policy steps as both have.
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
    """Exit code and what to print."""
    places = _places(first, second)
    found = list(compare.differences(*places))
    names = " and ".join(short_path(place) for place in places)
    short = [line for whole, place in zip((first, second), places, strict=True) if (line := _beyond(whole, place))]
    if not found:
        digest = checkpoint.manifest(places[0])["digest"]
        return 0, [f"identical: {names} (digest {digest[:16]})", *short]
    others = f" ({len(found) - 1:,} more entries differ)" if len(found) > 1 else ""
    return 1, [f"different: {names}", f"first at {found[0]}{others}", *short, *_reasons(*places)]


def _beyond(whole: Path, place: Path) -> str | None:
    """Said where a run has come further than the checkpoint that was compared."""
    newest = next(checkpoint.newest_first(whole / "checkpoints"), place)
    if newest.name == place.name:
        return None
    wrong = checkpoint.damage(newest, with_chunks=False)
    damaged = f", damaged: {wrong}" if wrong else ""
    return f"  {short_path(whole)} has come to {newest.name} policy steps{damaged}; compared at {place.name}"


def _places(first: Path, second: Path) -> tuple[Path, Path]:
    """The checkpoints to compare; where no moment is in common and there is a reason for it, the newest."""
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
    """Reasons why the bits may differ, by the two fingerprints and environment cards."""
    said = []
    moments = [checkpoint.manifest(place)["policy_steps"] for place in (first, second)]
    if moments[0] != moments[1]:
        said.append(f"  they are of different moments: {moments[0]} and {moments[1]} policy steps")
    for half, meaning in MEANING.items():
        differing = _differing(half, *_fingerprints(first, second))
        said += [f"  {key}: {before} and {after}; {meaning}" for key, before, after in differing]
    runs = [RunDirectory(place.parents[1]) for place in (first, second)]
    cards = [run.read_card() for run in runs if run.card.exists()]
    if vague := next((card["id"] for card in cards if card.get("deterministic") is False), None):
        said.append(f"  {vague}: the same seed and actions give different episodes, so no two runs can be the same")
    return said or ["  config, versions and machine are the same: this should not be; please report it"]
