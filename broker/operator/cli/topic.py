"""`anabranch topic ...`: topics of a running node.

Create, list, describe, alter and delete use Kafka's protocol. For requests that Kafka does not have, see `topic_moves`.
"""

from typing import Final

import click

from anabranch.broker.operator.cli.lazy import LazyGroup

SUBCOMMANDS: Final = {
    "create": ("topic_create:create", "Create a topic."),
    "list": ("topic_list:list_", "List topics, by pattern, with sizes and rates."),
    "describe": ("topic_describe:describe", "Show partitions, offsets and own configs."),
    "alter": ("topic_alter:alter", "Change configs, or add partitions."),
    "move": ("topic_move:move", "Move partitions to a node."),
    "elect": ("topic_elect:elect", "Bring partitions back to their preferred leaders."),
    "delete": ("topic_delete:delete", "Delete topics with their records."),
    "detach": ("topic_moves:detach", "Remove a topic from the cluster; its data stays."),
    "attach": ("topic_moves:attach", "Bring back a detached topic."),
    "detached": ("topic_moves:detached", "List detached topics, with their ids."),
    "clone": ("topic_moves:clone", "Create a topic with another's records."),
}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS)
def topic() -> None:
    """Create, list, describe, alter, move, elect, delete, detach, attach and clone topics of a running node."""
