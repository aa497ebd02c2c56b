"""The `anabranch` command. Subcommands are loaded when they are called, so that each starts only what it needs."""

import gc
from typing import Final

import click

from anabranch.broker.operator.cli.lazy import LazyGroup
from anabranch.broker.operator.cli.streams import guarded_streams

COMMANDS = {
    "serve": "Run a node.",
    "dev": "Run a node in memory, for a trial or for tests.",
    "console": "Open the web console of a running node.",
    "produce": "Write lines as records into a topic.",
    "consume": "Print the records of topics.",
    "topic": "Create, list, describe, alter, move, delete, detach, attach and clone topics of a running node.",
    "table": "List, describe, query, commit and drop tables of topics.",
    "group": "List, describe, move and delete groups: consumer, share and streams groups.",
    "config": "Show and change configs of topics, brokers, loggers and groups.",
    "transaction": "List, describe and abort transactions.",
    "cluster": "Show the state of the whole cluster.",
    "node": "List the nodes of a cluster, drain one, declare one dead, give up its log, remove it.",
    "user": "List, create and delete users that authenticate themselves with SASL, and change passwords.",
    "acl": "List, add and remove access control lists.",
    "schema": "List, show, check, register and delete schemas, and set levels of compatibility.",
    "quota": "List, set and remove quotas of users, client ids and addresses.",
    "profile": "Create, choose, list, show and delete profiles: named options that find a cluster.",
    "security": "Set up a secure node for a trial, check certificates, replace the secret of a cluster.",
    "compact": "Compact a node's objects now.",
    "storage": "List and verify a node's objects, and handle stopped partitions.",
    "backup": "Write a backup of a cluster's catalog, while its nodes run.",
    "restore": "Make a new catalog from a backup and the object stores.",
    "catalog": "Rebuild a catalog from the object store, or use an older copy of it.",
    "wal": "Inspect, verify, resize and repair a write-ahead log.",
    "spark": "Run Spark jobs over topics.",
    "doctor": "Check disk, clock, limits, stores and catalog, and say what to change.",
    "bench": "Measure this machine's disk and stores, and say what to expect of a node.",
    "completion": "Print the script for completion in a shell.",
}
"""Help texts by name of the command. Each is a click command in the module of the same name in this package."""
GARBAGE_THRESHOLD: Final = 200_000
"""Allocations between two collections of reference cycles: more than the imports of any command make."""


@click.group(
    cls=LazyGroup,
    subcommands={name: (f"{name}:{name}", text) for name, text in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="anabranch")
def main() -> None:
    """A Kafka-compatible broker that keeps its data in object storage."""


def run() -> None:
    """Run the command of this process."""
    # Imports create many objects and no cycles: looking for some took an eighth of the time of a start.
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    with guarded_streams():
        main()
