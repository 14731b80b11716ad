"""Model registry: registered models, their champions, and the served policy."""
