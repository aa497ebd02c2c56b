"""The scripts, by what they are about."""

from tests.differential.script import ScriptFunction
from tests.differential.scripts import cluster, configs, fetch, frames, groups, produce, topics

ALL_SCRIPTS: tuple[ScriptFunction, ...] = (
    *cluster.SCRIPTS,
    *topics.SCRIPTS,
    *produce.SCRIPTS,
    *fetch.SCRIPTS,
    *groups.SCRIPTS,
    *configs.SCRIPTS,
    *frames.SCRIPTS,
)
