"""Registered models, their champions, and the policy that is served."""
