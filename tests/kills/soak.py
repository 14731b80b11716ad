"""`make soak`: every environment and mode, killed at least twenty times each, and the results.

    python -m tests.kills.soak [--seed N] [--kills 20] [--jobs 2] [--only WORD ...] [--report FILE]

A chain is one run, killed ten times and then finished. The results of a chain are a line in
`.shepherd/soak.jsonl`, keyed by the code: after an interruption, the soak continues with the next chain. The
faults and corruptions of tests/faults follow after the kills.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flows.settings import state_folder
from rlcore import plugins
from rlcore.store.directory import RunDirectory
from tests.diambra_engine import engines
from tests.kills.cases import CASES, ENGINES, PLUGINS, Case, ordered
from tests.kills.killing import Reference, kill_and_resume, run_to_end, same_bits, same_record
from tests.processes import ROOT, kill_all, processes

REPORT = ROOT / "docs/results/exactness.md"
CHAIN = 10  # kills of one run
_ONE_AT_A_TIME = threading.Lock()
_HOMES: list[Path] = []  # of running cases, and of finished ones
PHASES = ("import", "build", "restore", "rollout", "update", "log", "checkpoint", "evaluation", "registration")


def main() -> int:
    """Run or continue the soak and write the report; return 1 if anything differed."""
    parser = argparse.ArgumentParser(prog="make soak", description="Kill training runs and compare where they end.")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="draws the moments (random)")
    parser.add_argument("--kills", type=int, default=20, help="of each environment and mode (20)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time (one a processor)")
    parser.add_argument("--only", nargs="*", default=[], help="environments or modes whose names hold one of these")
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # for example of `timeout`: runs are in their own sessions
        signal.signal(number, _end)
    plugins.name(PLUGINS)  # as visible to the processes that are killed
    plugins.load()
    results = state_folder() / "soak.jsonl"
    key = code_key()
    print(f"soak of code {key} · seed {options.seed} · results in {results}", flush=True)
    wanted = [c for c in CASES if not options.only or any(word in str(c) for word in options.only)]
    with engines_for(wanted), ThreadPoolExecutor(options.jobs) as pool:
        for finished in [pool.submit(soak, case, options.seed, options.kills, results, key) for case in wanted]:
            finished.result()
    if not options.only and not any(r["mode"] == "faults" and r["identical"] for r in read(results, key)):
        append(results, {"key": key, "mode": "faults", **faults()})
    found = read(results, key)
    if options.only and options.report == REPORT:
        print(f"a part of the soak does not replace {REPORT}; --report names another file")
        return int(any(not r["identical"] for r in found))
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(report(found))
    wrong = [r for r in found if not r["identical"]]
    print(f"{len(found)} results, {len(wrong)} wrong; {options.report}")
    return 1 if wrong else 0


def _end(number: int, frame: Any) -> None:
    while any([processes(home) for home in _HOMES]):  # a thread may restart a run that it finds killed
        for home in _HOMES:
            kill_all(home)
    for home in _HOMES:
        shutil.rmtree(home, ignore_errors=True)
    os._exit(128 + number)


def soak(case: Case, seed: int, kills: int, results: Path, key: str) -> None:
    """Run chains of one case until there are enough kills."""
    done = [r for r in read(results, key) if of_case(r, case)]
    count = sum(len(r["phases"]) for r in done)
    if count >= kills:
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        home = Path(name)
        _HOMES.append(home)
        reference = run_to_end(prepare_run(case, home / "whole"), case, home)
        chain = len(done)
        while count < kills:
            record = one_chain(case, seed, chain, min(CHAIN, kills - count), reference, home)
            append(results, {"key": key, **record})
            count, chain = count + len(record["phases"]), chain + 1
            print(
                f"{case}: {count} of {kills} kills, {'identical' if record['identical'] else 'DIFFERENT'}", flush=True
            )


@contextlib.contextmanager
def engines_for(cases: Sequence[Case]) -> Iterator[None]:
    """Start engines for the games of parallel runs and set their addresses in the environment."""
    games = sum(case.env_id == "doapp" for case in cases)
    with engines(ENGINES * games) as addresses:
        os.environ["DIAMBRA_ENVS"] = " ".join(addresses)
        yield


def of_case(record: dict[str, Any], case: Case) -> bool:
    """Return whether a chain was one of this case."""
    return (record["env_id"], record["mode"], record.get("algo")) == (case.env_id, case.mode, case.algo)


def prepare_run(case: Case, folder: Path) -> RunDirectory:
    """Return a run directory of a case, one at a time: imports of environments by gymnasium are not thread-safe."""
    with _ONE_AT_A_TIME:
        return case.prepare(folder)


def one_chain(case: Case, seed: int, chain: int, kills: int, reference: Reference, home: Path) -> dict[str, Any]:
    """Kill one run repeatedly and compare its end."""
    began = time.monotonic()
    rng = np.random.default_rng([seed, ordered(case), chain])
    run = prepare_run(case, home / f"chain-{chain}")
    phases = kill_and_resume(run, case, reference, kills, rng, home)
    identical = same_bits(reference.run, run) and same_record(reference.run, run)
    of = {"env_id": case.env_id, "mode": case.mode, "algo": case.algo}
    record = of | {"chain": chain, "seed": seed, "phases": phases}
    return record | {"identical": identical, "seconds": round(time.monotonic() - began, 1)}


SOAKED = "from tests.soaking import"  # files with tests that `make test` leaves out


def faults() -> dict[str, Any]:
    """Run tests/faults and tests outside `make test`; return their counts by name."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "faults.xml"
        left_out = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if SOAKED in path.read_text()]
        tests = ["tests/faults", *left_out]
        command = [sys.executable, "-m", "pytest", "-q", *tests, f"--junitxml={log}"]
        code = subprocess.run(command, cwd=ROOT, env=os.environ | {"SOAK": "1"}).returncode
        counts: Counter[str] = Counter()
        for entry in ElementTree.parse(log).iter("property"):
            counts[str(entry.get("name"))] += int(str(entry.get("value")))
    return {"identical": code == 0, "counts": dict(counts), "env_id": "", "phases": []}


def code_key() -> str:
    """Return a hash of all code that affects the result: a commit that changes none of it needs no new soak."""
    digest = hashlib.sha256()
    paths = [ROOT / "tests/runs.py", ROOT / "tests/processes.py"]
    for folder in ("rlcore", "flows", "conf", "examples", "tests/kills", "tests/faults", "tests/probes"):
        paths += sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".yaml", ".c"))
    for path in paths:
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def read(results: Path, key: str) -> list[dict[str, Any]]:
    """Return the results for this code so far."""
    lines = results.read_text().splitlines() if results.exists() else []
    return [record for record in map(json.loads, lines) if record["key"] == key]


def append(results: Path, record: dict[str, Any]) -> None:
    """Append one result."""
    with open(results, "a") as handle:
        handle.write(json.dumps(record) + "\n")


def report(found: list[dict[str, Any]]) -> str:
    """Return the page that is committed."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: list[dict[str, Any]]) -> Iterator[str]:
    kills = [r for r in found if r["mode"] != "faults"]
    seeds = ", ".join(str(s) for s in sorted({r["seed"] for r in kills}))
    total, same = sum(len(r["phases"]) for r in kills), sum(r["identical"] for r in kills)
    yield "# Kill and resume: results of the soak test"
    yield ""
    yield "Written by `make soak`. `tests/kills` selects the times of the kills and determines the phase of each."
    yield ""
    yield f"- {datetime.date.today().isoformat()}, {_machine()}"
    yield f"- code {found[0]['key'] if found else '–'}, seed {seeds}"
    yield f"- {total} kills of whole process trees in {len(kills)} runs; {same} of {len(kills)} runs ended with the"
    yield "  same bits and event log (every metric point and evaluation once) as the run without kills"
    yield ""
    yield f"| environment | mode | kills | {' | '.join(PHASES)} | other | identical |"
    yield f"|---|---|{'---|' * (len(PHASES) + 3)}"
    for case in CASES:
        chains = [r for r in kills if of_case(r, case)]
        if chains:
            where = Counter(phase for r in chains for phase in r["phases"])
            cells = [where.pop(phase, 0) or "" for phase in PHASES]
            good = sum(r["identical"] for r in chains)
            row = [
                case.env_id,
                case.mode + ("" if case.algo == "ppo" else f" {case.algo}"),
                sum(len(r["phases"]) for r in chains),
                *cells,
                where.total() or "",
            ]
            yield f"| {' | '.join(map(str, row))} | {good} of {len(chains)} runs |"
    for record in found:
        if record["mode"] == "faults":
            yield ""
            verdict = "all noticed, nothing good lost" if record["identical"] else "NOT ALL AS THEY SHOULD BE"
            yield f"Faults and corruptions (tests/faults), {verdict}:"
            yield ""
            yield from (f"- {name}: {count:,}" for name, count in sorted(record["counts"].items()))


def _machine() -> str:
    import torch

    model = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), ": ?")
    return f"{model.partition(': ')[2]}, Python {platform.python_version()}, torch {torch.__version__}"


if __name__ == "__main__":
    raise SystemExit(main())
