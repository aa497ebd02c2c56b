"""Options of commands about users, and the two places that keep them: a running cluster, and its catalog.

A cluster answers through Kafka's protocol (KIP-554). The catalog serves while no node runs, and before the first user
exists who may log in (`user_catalog`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from anabranch.broker.kafka.sasl.user_requests import (
    MECHANISM_TYPES,
    Credentials,
    SaltedPassword,
    put_request,
    remove_request,
)
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.options import catalog_option, config_option, data_dir_option, read_settings
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from anabranch.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

if TYPE_CHECKING:
    from anabranch.broker.operator.cli.user_catalog import CatalogUsers


@dataclass(frozen=True, slots=True)
class ClusterUsers:
    """The users of a running cluster. All methods raise ClientError."""

    client: CommandClient

    def find(self, name: str | None = None) -> Credentials:
        """Return the credentials of a user, or of all."""
        names = None if name is None else [UserName(name=name)]
        with self.client.cluster() as cluster:
            request = DescribeUserScramCredentialsRequest(users=names)
            answer: DescribeUserScramCredentialsResponse = cluster.first.call(request)
        if answer.error_code:
            raise ClientError(error_text(answer.error_code, answer.error_message))
        found: dict[str, Mapping[str, int | None]] = {}
        for each in answer.results:
            if each.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            if each.error_code:
                raise ClientError(f"user {each.user}: {error_text(each.error_code, each.error_message)}")
            infos = [info for info in each.credential_infos if info.mechanism in MECHANISM_TYPES]
            found[each.user] = {MECHANISM_TYPES[info.mechanism]: info.iterations for info in infos}
        return dict(sorted(found.items()))

    def put(self, name: str, passwords: Sequence[SaltedPassword]) -> None:
        """Set the credentials of a user, one after the other: a request may change a user only once."""
        for each in passwords:
            self._alter(put_request(name, each))

    def remove(self, name: str, mechanisms: Sequence[str]) -> None:
        """Remove credentials of a user, which must exist."""
        for each in mechanisms:
            self._alter(remove_request(name, each))

    def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        with self.client.cluster() as cluster:
            answer: AlterUserScramCredentialsResponse = cluster.first.call(request)
        for each in answer.results:
            if each.error_code:
                raise ClientError(f"user {each.user}: {error_text(each.error_code, each.error_message)}")


Users: TypeAlias = "ClusterUsers | CatalogUsers"


def on_users(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running cluster, or a catalog; the command receives the `Users` first."""

    @config_option
    @data_dir_option
    @catalog_option
    @client_options
    def wrapped(
        client: CommandClient,
        config_file: Path | None,
        data_dir: Path | None,
        catalog_url: str | None,
        **arguments: Any,
    ) -> None:
        if config_file is None and data_dir is None and catalog_url is None:
            command(ClusterUsers(client), **arguments)
            return
        if click.get_current_context().get_parameter_source("servers") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--bootstrap-server names a running cluster, and --config its catalog: give one")
        # Imported late: it loads the catalog, which a running cluster does not need.
        from anabranch.broker.operator.cli.user_catalog import CatalogUsers

        command(CatalogUsers(read_settings(config_file, data_dir, catalog_url=catalog_url)), **arguments)

    return update_wrapper(wrapped, command)
