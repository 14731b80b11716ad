"""Saved view of an experiment's runs in MLflow, with the columns return, algorithm, environment, seed and group.

MLflow 3 has no setting for the default columns of its list: each browser stores its own. An experiment can have saved
views as tags. This view is listed under Views; the address `…/runs?viewStateShareKey=shepherd` opens it.
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
    """Return the view in the format of MLflow's pages: a name, times, and the state as JSON."""
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
