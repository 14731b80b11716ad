"""Families of environments: which ids they have and which extra installs them."""
