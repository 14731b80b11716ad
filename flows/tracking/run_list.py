"""The saved view of an experiment's runs in MLflow: the return first, then what was trained.

MLflow 3 has no setting for the columns that its list shows at first: each browser remembers its own. An experiment may
have saved views, though, as tags. This one is offered under Views, and opened by `…/runs?viewStateShareKey=shepherd`.
"""

from __future__ import annotations

import json

from rlcore.store.series import FINAL, WHILE_TRAINING

VIEW = "mlflow.sharedViewState.shepherd"  # the experiment's tag
NAME = "Returns"
METRICS = (FINAL["greedy"], WHILE_TRAINING["greedy"])
TAGS = ("algo", "env_id", "seed", "group")
WIDTH = 190  # pixels of a metric's column, so that its name can be read


def view() -> str:
    """Return the view as MLflow's pages write it: a name, times, and their state as JSON."""
    metrics = [f"metrics.`{name}`" for name in METRICS]
    shown = [*metrics, *(f"tags.`{name}`" for name in TAGS), "attributes.`Models`"]
    state = {
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": shown,
        "columnOrder": [*shown, "duration"],
        "columnWidths": dict.fromkeys(metrics, WIDTH),
    }
    return json.dumps({"name": NAME, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})
