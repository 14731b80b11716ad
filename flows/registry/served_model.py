"""Model for MLflow's scoring server that explains in one sentence why it refuses an input."""

from __future__ import annotations

from typing import Any

from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException
from mlflow.pyfunc import PyFuncModel

from rlcore.errors import UserError


class ServedModel:
    """Model with the methods that MLflow's scoring server calls.

    MLflow's own messages contain all the data of a request, and do not name the input that has a wrong shape. Therefore
    the policy itself checks an input that MLflow has refused.
    """

    def __init__(self, model: PyFuncModel) -> None:
        self.model, self.metadata = model, model.metadata

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Return the model's outputs, or raise an MlflowException whose message is one sentence."""
        try:
            return self.model.predict(data, params)
        except MlflowException as error:
            message = self._explain(data) or str(error.message).rpartition("Error: ")[2]
            raise _Refusal(message, INVALID_PARAMETER_VALUE) from None

    def _explain(self, data: Any) -> str | None:
        """Return what is wrong with an input; None if the policy accepts it, or if the model is not a policy."""
        try:
            self.model.unwrap_python_model().policy.exchange(data)
        except UserError as error:
            return str(error)
        except (AttributeError, MlflowException):  # a model that Shepherd did not register
            return None
        return None


class _Refusal(MlflowException):
    """Error with a constant message: MLflow's server would insert the data of the request before the message."""

    @property
    def message(self) -> str:
        """The message that the client receives."""
        return self.args[0]

    @message.setter
    def message(self, value: str) -> None:
        pass
