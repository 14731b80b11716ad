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

    It is not a subclass of MLflow's `PythonModel`. In a subclass, MLflow would interpret the type hint of the input of
    `predict` as a schema of lists, and warn every user if there is no type hint. The inputs of this class are described
    by the model's signature instead.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the weights that are stored with the model."""
        from rlcore.evaluation.policy import load_policy

        self.policy = load_policy(context.artifacts["policy"])

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> Any:  # noqa: ANN001
        """Return name -> array [N, ...] for the action and the other outputs of the policy.

        The other outputs are `logprob` and `value`, if the agent computes them, and the recurrent state (carry) of a
        recurrent policy.

        The input is a dict of observation key -> array [N, ...], or an array if there is only one key. A recurrent
        policy also needs `is_first` [N], which is True at the first observation of an episode, and the carry that the
        last call returned; the first call needs the initial carry of `load_policy(...).initial_carry(N)`. If the
        parameter `deterministic` is true (default), the most likely actions are returned; otherwise actions are
        sampled.
        """
        from rlcore.errors import UserError  # from the rlcore package that is stored with the model

        deterministic = (params or {}).get("deterministic")  # MLflow passes null on
        try:
            return self.policy.exchange(model_input, greedy=deterministic is None or bool(deterministic))
        except UserError as error:  # the server hides the messages of other exceptions from the client
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None


class PolicyModel(PolicyServer, PythonModel):
    """Trained policy that MLflow can load and serve, as a subclass of MLflow's `PythonModel`."""


mlflow.models.set_model(PolicyModel())
