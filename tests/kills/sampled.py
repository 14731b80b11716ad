"""What `make test` does of the soak: three kills for each environment and mode, at moments of a seed of its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np

from tests.kills.cases import Case, ordered
from tests.kills.killing import kill_and_resume, run_to_end, same_bits, same_record

KILLS = 3


def check(env_id: str, modes: tuple[str, ...], home: Path) -> None:
    """Kill a run of each mode and compare its end with one undisturbed run: the mode changes no bit either.

    KILLS_SEED repeats the moments of an earlier test, as far as a machine can.
    """
    seed = int(os.environ.get("KILLS_SEED") or int.from_bytes(os.urandom(4)))
    whole = Case(env_id, modes[0])
    reference = run_to_end(whole.prepare(home / "whole"), whole, home)
    for mode in modes:
        case = Case(env_id, mode)
        rng = np.random.default_rng([seed, ordered(case)])
        killed: list[str] = []
        for number in itertools.count():
            run = case.prepare(home / f"{mode}-{number}")
            killed += kill_and_resume(run, case, reference, KILLS - len(killed), rng, home)
            print(f"{case}: KILLS_SEED={seed}, killed in {', '.join(killed)}")  # pytest shows it when something differs
            assert same_bits(reference.run, run, home)
            assert same_record(reference.run, run)
            if len(killed) >= KILLS:  # else it ended before its last moment came
                break
