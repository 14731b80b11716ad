"""Judging a policy: whole episodes, final evaluations, films."""
