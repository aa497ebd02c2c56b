"""Settings of the authorizer. Names are Kafka's, with underscores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.broker.node.settings.area import Area, setting
from anabranch.broker.node.settings.errors import SettingsError

_USER: Final = "User:"


@dataclass(frozen=True, kw_only=True)
class AuthorizerSettings(Area):
    """Access control lists (ACLs), with the semantics of Apache Kafka's StandardAuthorizer."""

    enabled: bool = setting(
        default=False,
        description=(
            "Check every request of clients against the ACLs of the catalog (Kafka: authorizer.class.name); "
            "the same on all nodes. Off: every client may do everything."
        ),
    )
    super_users: str = setting(
        default="",
        description=(
            "Principals that may do everything, separated by semicolons: `User:CN=admin,O=Example;User:root` "
            "(Kafka: super.users)."
        ),
    )
    allow_everyone_if_no_acl_found: bool = setting(
        default=False,
        description="Allow everything on resources without an ACL (Kafka: allow.everyone.if.no.acl.found).",
    )
    acls_max: int = setting(
        default=20_000,
        ge=1,
        description="ACLs of the cluster, which every node keeps in memory.",
    )


def super_users_of(area: AuthorizerSettings) -> Sequence[str]:
    """Return the principals of the super users. Raises SettingsError."""
    found = [text.strip() for text in area.super_users.split(";")]
    for principal in found:
        if principal and not (principal.startswith(_USER) and len(principal) > len(_USER)):
            raise SettingsError(
                f"setting authorizer.super_users: expected principals such as User:admin, separated by semicolons, "
                f"found {principal!r}"
            )
    return [principal for principal in found if principal]
