"""Twenty workers killed before a trial runs, and twenty while one does.

`make test` has one of them (tests/flows/workers/test_deployments.py).
"""

from __future__ import annotations

import os

from tests.kills import workers
from tests.soaking import soak


@soak
def test_every_sweep_ends_by_itself_and_every_trial_is_there_once() -> None:
    seed = int(os.environ.get("KILLS_SEED") or int.from_bytes(os.urandom(4)))
    found = workers.soak(list(workers.KINDS), 20, seed)
    assert not [record for record in found if record["wrong"]]
