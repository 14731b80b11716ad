"""Part of the soak that `make test ALL=1` runs: a few kills for each mechanism, at moments from a new seed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np

from flows.runs.create import change_run
from rlcore.store.directory import RunDirectory
from tests.kills.cases import Case, ordered
from tests.kills.killing import callback_states, finish, kill, run_to_end, same_bits, same_record


def check(env_id: str, modes: tuple[str, ...], home: Path, algo: str = "ppo") -> RunDirectory:
    """Kill a run once in each mode in turn, and compare its end with one uninterrupted run.

    Whether environments run in this process or in subprocesses may change on resume and changes no bit, so one run is
    enough for both. KILLS_SEED repeats the moments of an earlier test, as far as a machine allows it.

    Returns:
        The uninterrupted run.
    """
    seed = int(os.environ.get("KILLS_SEED") or int.from_bytes(os.urandom(4)))
    cases = [Case(env_id, mode, algo) for mode in modes]
    reference = run_to_end(cases[0].prepare(home / "whole"), cases[0], home)
    rng = np.random.default_rng([seed, ordered(cases[0])])
    owed = dict.fromkeys(cases, 1)
    for number in itertools.count():
        run = cases[0].prepare(home / f"killed-{number}")
        for case in (case for case in cases if owed[case]):
            if case.mode == "subprocess":
                change_run(run, ["env.sync_env=false"])
            due, owed[case] = owed[case], 0
            killed = kill(run, case, reference, due, rng, home, later=sum(owed.values()))
            owed[case] = due - len(killed)
            print(f"{case}: KILLS_SEED={seed}, killed in {', '.join(killed)}")  # pytest shows it if something differs
        finish(run, cases[-1], home)
        assert same_bits(reference.run, run)
        assert same_record(reference.run, run)
        assert callback_states(reference.run) == callback_states(run)
        if not any(owed.values()):  # otherwise it ended before its last moment
            return reference.run
