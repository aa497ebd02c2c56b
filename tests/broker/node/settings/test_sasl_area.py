"""Settings of SASL: mechanisms of listeners, and what does not fit together."""

import pytest

from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.sasl_area import mechanisms_of
from anabranch.broker.node.settings.sources import load

SECURE = {"listener.listeners": "SASL_PLAINTEXT://127.0.0.1:1,A://127.0.0.1:2", "admin.enabled": "false"}
MAP = {"listener.security_protocol_map": "A:SASL_PLAINTEXT"}


def test_listeners_have_the_mechanisms_of_the_settings_or_their_own() -> None:
    settings = load({**SECURE, **MAP, "listener.sasl_mechanisms": "a:scram-sha-256, A:SCRAM-SHA-256"}, {})
    found = [mechanisms_of(settings.sasl, settings.listener.sasl_mechanisms, each.name) for each in settings.listeners]
    assert found == [["SCRAM-SHA-512", "SCRAM-SHA-256"], ["SCRAM-SHA-256"]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"sasl.enabled_mechanisms": "GSSAPI"},
            "expected mechanisms of SCRAM-SHA-512, SCRAM-SHA-256, OAUTHBEARER, PLAIN, found 'GSSAPI'",
        ),
        ({"sasl.enabled_mechanisms": ","}, "sasl.enabled_mechanisms: empty"),
        ({"sasl.enabled_mechanisms": "PLAIN"}, "sasl.plain_users_file: unset, but a listener has the mechanism PLAIN"),
        ({"sasl.plain_users_file": "/u"}, "sasl.plain_users_file: set, but no listener has the mechanism PLAIN"),
        ({"listener.sasl_mechanisms": "A"}, "expected NAME:MECHANISM, such as SASL_SSL:SCRAM-SHA-512, found 'A'"),
        ({"listener.sasl_mechanisms": "A:X"}, "setting listener.sasl_mechanisms: expected mechanisms of"),
        ({"listener.sasl_mechanisms": "B:PLAIN"}, "B is not a listener with protocol SASL_SSL or SASL_PLAINTEXT"),
        (
            {"sasl.enabled_mechanisms": "OAUTHBEARER"},
            "sasl.oauthbearer_jwks_url: empty, but a listener has the mechanism",
        ),
        ({"sasl.oauthbearer_jwks_url": "https://a/b"}, "sasl.oauthbearer_jwks_url: set, but no listener has"),
        *(
            (
                {"sasl.enabled_mechanisms": "OAUTHBEARER", "sasl.oauthbearer_jwks_url": url},
                "expected https://HOST/PATH or",
            )
            for url in ("http://a/b", "ftp://a/b", "file://host/b", "file:b", "a", "https:///b")
        ),
        ({"sasl.enabled_mechanisms": "OAUTHBEARER", "sasl.oauthbearer_jwks_url": "https://[/b"}, "not a URL"),
        ({"sasl.server_max_receive_bytes": "10"}, "sasl.server_max_receive_bytes"),
    ],
)
def test_what_does_not_fit_together_is_named(values: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load({**SECURE, **MAP, **values}, {})
    assert expected in str(raised.value)
    assert str(raised.value).isprintable()
