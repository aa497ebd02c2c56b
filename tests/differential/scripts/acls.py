"""The APIs for ACLs at brokers without an authorizer. `tests/differential/acls` compares those with one."""

from typing import Any

from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.messages.describe_acls import DescribeAclsRequest
from tests.differential.script import Script


def no_authorizer(script: Script) -> None:
    everything: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    script.call("describe", DescribeAclsRequest(**everything), 1, 2, 3)
    acl = AclCreation(
        resource_type=2,
        resource_name="na",
        resource_pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    script.call("create", CreateAclsRequest(creations=[acl, acl]), 1, 2, 3)
    script.call("create nothing", CreateAclsRequest(creations=[]), 3)
    script.call("delete", DeleteAclsRequest(filters=[DeleteAclsFilter(**everything)] * 2), 1, 2, 3)


SCRIPTS = (no_authorizer,)
