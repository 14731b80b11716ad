"""Saved view for MLflow's list of runs, with the columns return, algorithm, environment, seed and group.

MLflow 3 has no setting for the default columns of its list of runs: each browser stores its own choice. A tag of an
experiment can contain a saved view, which MLflow's page lists under Views. The address
`…/runs?viewStateShareKey=shepherd` opens the view of this module.
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
    """Return the value of the MLflow tag that stores a saved view of the run list.

    It is JSON: a name, the times of creation and last change, and the columns and sorting of the list.
    """
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
