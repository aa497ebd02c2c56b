"""Settings of the authorizer. Names are Kafka's, with underscores."""

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from anabranch.broker.node.settings.area import Area
from anabranch.broker.node.settings.errors import SettingsError

_USER: Final = "User:"


class AuthorizerSettings(Area):
    """Access control lists (ACLs), with the semantics of Apache Kafka's StandardAuthorizer."""

    enabled: bool = Field(
        default=False,
        description=(
            "Check every request of clients against the ACLs of the catalog, the same setting on all nodes (Kafka: "
            "authorizer.class.name). Off: whoever reaches a listener may do everything."
        ),
    )
    super_users: str = Field(
        default="",
        description=(
            "Principals that may do everything, whatever the ACLs say, separated by semicolons: "
            "`User:CN=admin,O=Example;User:root` (Kafka: super.users)."
        ),
    )
    allow_everyone_if_no_acl_found: bool = Field(
        default=False,
        description=(
            "Allow everything to everybody on resources that no ACL concerns (Kafka: allow.everyone.if.no.acl.found)."
        ),
    )
    acls_max: int = Field(
        default=20_000,
        ge=1,
        description="ACLs that the cluster may have. Every node keeps all of them in memory.",
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
