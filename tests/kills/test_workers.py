"""Twenty workers killed before a trial runs, and twenty during a trial.

`make test` runs one such case (tests/flows/workers/test_deployments.py).
"""

from __future__ import annotations

import os

from tests.kills import workers
from tests.soaking import soak


@soak
def test_killed_workers_lose_and_repeat_no_trial() -> None:
    seed = int(os.environ.get("KILLS_SEED") or int.from_bytes(os.urandom(4)))
    found = workers.soak(list(workers.KINDS), 20, seed)
    assert not [record for record in found if record["wrong"]]
