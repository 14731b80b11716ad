"""Messages of `shepherd serve` for inputs that MLflow refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlcore.errors import UserError

# MLflow raises warnings at import; warnings of our own code are still errors.
pytestmark = pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")
OF_MLFLOW = "Failed to enforce schema of data '[0. 0.]' with schema '…'. Error: Shape of input (2,) does not match."


def refused(policy: Any) -> Any:
    """Return the error that a client receives if MLflow's own check refuses an input."""
    from mlflow.exceptions import MlflowException

    from flows.registry.served_model import ServedModel  # imports mlflow.pyfunc, which warns

    def predict(data: Any, params: Any) -> Any:
        raise MlflowException(OF_MLFLOW)

    model: Any = SimpleNamespace(
        metadata=None, predict=predict, unwrap_python_model=lambda: SimpleNamespace(policy=policy)
    )
    with pytest.raises(MlflowException) as error:
        ServedModel(model).predict(np.zeros(2))
    error.value.message = f"Failed to predict data. Error: {error.value.message}"  # as MLflow's server does
    return json.loads(error.value.serialize_as_json())


def test_refused_input_is_explained_by_policy() -> None:
    def exchange(data: Any) -> Any:
        raise UserError("obs 'state': expected shape (4,)")

    answer = refused(SimpleNamespace(exchange=exchange))
    assert (answer["message"], answer["error_code"]) == ("obs 'state': expected shape (4,)", "INVALID_PARAMETER_VALUE")


@pytest.mark.parametrize("policy", [SimpleNamespace(exchange=lambda data: {}), None])
def test_refused_input_that_policy_accepts_keeps_reason_of_mlflow(policy: Any) -> None:
    assert refused(policy)["message"] == "Shape of input (2,) does not match."
