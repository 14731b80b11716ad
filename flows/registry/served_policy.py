"""The model that MLflow serves, as code: this file and the `rlcore` package are stored beside the weights.

MLflow copies this file into the model and runs it when the model is loaded, so it imports nothing of `flows` and needs
torch, NumPy and safetensors only: no configuration, no Hydra, no environment.
"""

from __future__ import annotations

from typing import Any

import mlflow
from mlflow.pyfunc import PythonModel, PythonModelContext


class Answering:
    """A trained policy: observations in, actions in the environment's own form out.

    Not a `PythonModel` itself: where one defines `predict`, MLflow reads a type hint of its input as a schema of lists,
    and warns every user when there is none. The signature says what is taken.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the weights that lie with the model.

        Args:
            context: MLflow's; `artifacts["policy"]` is the exported policy's folder.
        """
        from rlcore.judge.policy import load_policy

        self.policy = load_policy(context.artifacts["policy"])

    def predict(self, context: PythonModelContext, model_input, params: dict[str, Any] | None = None) -> Any:  # noqa: ANN001
        """Choose actions.

        Args:
            context: MLflow's.
            model_input: [N, ...] array where the agent sees one observation key, else key -> [N, ...].
            params: `deterministic`: true (default) for the most likely actions, false to sample.

        Returns:
            [N, ...] actions.

        Raises:
            MlflowException: an observation is none of this policy; a server answers with 400 and the sentence.
        """  # noqa: DOC107
        from rlcore.errors import UserError

        deterministic = (params or {}).get("deterministic")  # MLflow lets null through
        try:
            return self.policy.predict(model_input, greedy=deterministic is None or bool(deterministic))
        except UserError as error:  # as any other exception it would reach the client as a traceback without its words
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None


class PolicyModel(Answering, PythonModel):
    """The same, as MLflow wants it."""


mlflow.models.set_model(PolicyModel())
