"""Code of the model that MLflow serves; this file and the `rlcore` package are stored with the weights.

MLflow copies this file to the model and runs it when the model is loaded. It therefore imports nothing from `flows`,
and needs only torch, NumPy and safetensors: no configuration, no Hydra, no environment.
"""

from __future__ import annotations

from typing import Any

import mlflow
from mlflow.pyfunc import PythonModel, PythonModelContext


class PolicyServer:
    """Trained policy that maps observations to actions in the environment's format and to other outputs of the agent.

    It is not a subclass of `PythonModel`: in such a class MLflow interprets the type hint of `predict`'s input as a
    schema of lists, and warns every user if there is none. The model's signature describes the inputs instead.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the weights that are stored with the model."""
        from rlcore.evaluation.policy import load_policy

        self.policy = load_policy(context.artifacts["policy"])

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> Any:  # noqa: ANN001
        """Return the outputs of the signature by name: action, logprob and value if the agent has them, and carry.

        The input is an array [N, ...] if the agent has one observation key, otherwise key -> [N, ...]. A recurrent
        policy also needs `is_first` [N] and its carry, at first that of `initial`. If the parameter `deterministic` is
        true (default), the most likely actions are returned; otherwise actions are sampled.
        """
        from rlcore.errors import UserError  # from the rlcore package that is stored with the model

        deterministic = (params or {}).get("deterministic")  # MLflow passes null on
        try:
            return self.policy.exchange(model_input, greedy=deterministic is None or bool(deterministic))
        except UserError as error:  # the server hides the messages of other exceptions from the client
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None


class PolicyModel(PolicyServer, PythonModel):
    """Trained policy as an MLflow model."""


mlflow.models.set_model(PolicyModel())
