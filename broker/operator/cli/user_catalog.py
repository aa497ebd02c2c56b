"""The users in a cluster's catalog, which nodes that run follow within a second. See `user_source`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.broker.kafka.sasl.credentials import SCRAM
from anabranch.broker.kafka.sasl.delegation_tokens import USER
from anabranch.broker.kafka.sasl.scram import iterations_of, make_credential
from anabranch.broker.kafka.sasl.user_requests import Credentials, SaltedPassword
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.catalog_access import on_catalog
from anabranch.broker.operator.cli.errors import run


@dataclass(frozen=True, slots=True)
class CatalogUsers:
    """The users in a catalog. All methods raise ClickException."""

    settings: Settings

    def find(self, name: str | None = None) -> Credentials:
        """Return the credentials of a user, or of all."""
        found: Mapping[tuple[str, str], Mapping[str, str]] = run(
            on_catalog(self.settings, lambda catalog: catalog.list_configs(), read_only=True)
        )
        return {
            user: {mechanism: iterations_of(entry) for mechanism, entry in sorted(entries.items())}
            for (kind, user), entries in sorted(found.items())
            if kind == SCRAM and entries and name in {None, user}
        }

    def put(self, name: str, passwords: Sequence[SaltedPassword]) -> None:
        """Set the credentials of a user."""
        entries = {
            each.mechanism: make_credential(each.mechanism, each.salted, each.salt, each.iterations).to_text()
            for each in passwords
        }
        run(on_catalog(self.settings, lambda catalog: catalog.alter_config(SCRAM, name, set_configs=entries, unset=[])))

    def remove(self, name: str, mechanisms: Sequence[str]) -> None:
        """Remove credentials of a user, and with the last one its delegation tokens."""
        owner = f"{USER}{name}"
        run(
            on_catalog(
                self.settings,
                lambda catalog: catalog.alter_config(SCRAM, name, set_configs={}, unset=mechanisms, token_owner=owner),
            )
        )
