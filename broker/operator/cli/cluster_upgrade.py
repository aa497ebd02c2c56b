"""`anabranch cluster upgrade`: the end of a rolling upgrade."""

import click
from rich.console import Console

from anabranch.broker.kafka.configs.features import CLUSTER_LEVEL
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.client.connection import error_text
from anabranch.output import emit, output_option
from anabranch.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from anabranch.s3stream.catalog.schema import NEWEST


@click.command(short_help="Let the cluster use what a new version brings.")
@click.option("--dry-run", is_flag=True, help="Check whether all nodes have the version, and change nothing.")
@output_option
@client_options
def upgrade(*, dry_run: bool, client: CommandClient, output: str) -> None:
    """End a rolling upgrade: raise the cluster to the level of this version. No node can go back after that.

    Do it when all nodes run the new version, and the cluster has run well with it for some days.
    """
    update = FeatureUpdateKey(feature=CLUSTER_LEVEL, max_version_level=NEWEST)
    with client.cluster() as found:
        answer: UpdateFeaturesResponse = found.first.call(
            UpdateFeaturesRequest(feature_updates=[update], validate_only=dry_run)
        )
    if answer.error_code:
        raise click.ClickException(error_text(answer.error_code, answer.error_message))

    def show(_console: Console) -> None:
        click.echo(f"every node knows level {NEWEST}" if dry_run else f"the cluster has level {NEWEST}")

    emit(output, {"level": NEWEST, "dry_run": dry_run}, show)
