import pytest

from anabranch.broker.node.settings.authorizer_area import super_users_of
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.sources import load


def test_super_users_are_separated_by_semicolons() -> None:
    area = load({"authorizer.super_users": " User:CN=a,O=b ;User:c;"}, {}).authorizer
    assert super_users_of(area) == ["User:CN=a,O=b", "User:c"]
    assert not super_users_of(load({}, {}).authorizer)


@pytest.mark.parametrize("text", ["admin", "User:a;b", "User:", "Group:a"])
def test_what_is_no_principal_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match=r"setting authorizer\.super_users: expected principals such as User:admin"):
        load({"authorizer.super_users": text}, {})
