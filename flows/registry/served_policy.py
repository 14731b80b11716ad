"""The model that MLflow serves, as code: this file and the `rlcore` package are stored beside the weights.

MLflow copies this file into the model and runs it when the model is loaded, so it imports nothing of `flows` and needs
torch, NumPy and safetensors only: no configuration, no Hydra, no environment.
"""

from __future__ import annotations

from typing import Any

import mlflow
from mlflow.pyfunc import PythonModel, PythonModelContext


class Answering:
    """A trained policy: observations in, actions in the environment's own form and what belongs to them out.

    Not a `PythonModel` itself: where one defines `predict`, MLflow reads a type hint of its input as a schema of lists,
    and warns every user when there is none. The signature says what is taken.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the weights that lie with the model."""
        from rlcore.judge.policy import load_policy

        self.policy = load_policy(context.artifacts["policy"])

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> Any:  # noqa: ANN001
        """Arrays by name, as the signature lists them: action, logprob and value where the agent says them, carry.

        Takes an array [N, ...] where the agent sees one observation key, else key -> [N, ...]; a policy that remembers
        also `is_first` [N] and its carry, at first that of `initial`. The parameter `deterministic` is true (default)
        for the most likely actions, false to sample.
        """
        from rlcore.errors import UserError  # of the rlcore that lies with the model

        deterministic = (params or {}).get("deterministic")  # MLflow lets null through
        try:
            return self.policy.exchange(model_input, greedy=deterministic is None or bool(deterministic))
        except UserError as error:  # any other exception would reach the client without its words
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None


class PolicyModel(Answering, PythonModel):
    """A trained policy as MLflow wants it."""


mlflow.models.set_model(PolicyModel())
