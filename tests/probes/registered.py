"""The world model of the probes as a plugin: `SHEPHERD_PLUGINS=tests.probes.registered`."""

from __future__ import annotations

from rlcore.algorithms import register
from tests.probes import world

register("world", world)
