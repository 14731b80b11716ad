"""Model registry: registered models, the choice of the best version (champion), and the policy that MLflow serves."""
