"""Settings of TLS that contradict each other."""

import pytest

from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.sources import load
from anabranch.broker.node.settings.ssl_area import CIPHER_SUITES, SslSettings, ciphers_of, protocols_of

SECURE = {"listener.listeners": "SSL://127.0.0.1:9093", "ssl.certificate_file": "/n.pem"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"listener.listeners": "SSL://127.0.0.1:1"}, "ssl.certificate_file: unset, but a listener uses SSL"),
        ({"ssl.certificate_file": "/n.pem"}, "ssl.certificate_file: set, but no listener uses SSL: add one to"),
        (
            {**SECURE, "ssl.key_password": "a", "ssl.key_password_file": "/p"},
            "ssl.key_password_file: set beside ssl.key_password: remove one",
        ),
        ({**SECURE, "ssl.client_auth": "required"}, "ssl.ca_file: unset, but ssl.client_auth is 'required'"),
        ({**SECURE, "ssl.ca_file": "/ca.pem"}, "ssl.ca_file: set, but ssl.client_auth is 'none'"),
        ({**SECURE, "ssl.crl_file": "/crl.pem"}, "ssl.crl_file: set, but ssl.client_auth is 'none'"),
        ({"ssl.client_auth": "maybe"}, "ssl.client_auth from flag --ssl-client-auth: 'maybe' is not allowed"),
        ({"ssl.enabled_protocols": "TLSv1.1"}, "expected TLSv1.2 and TLSv1.3, or one of them, found 'TLSv1.1'"),
        ({"ssl.enabled_protocols": ","}, "ssl.enabled_protocols: empty"),
        ({"ssl.cipher_suites": "TLS_RSA_WITH_AES_128_CBC_SHA"}, "found 'TLS_RSA_WITH_AES_128_CBC_SHA'"),
        (
            {"ssl.cipher_suites": next(iter(CIPHER_SUITES)), "ssl.enabled_protocols": "TLSv1.3"},
            "ssl.cipher_suites: these are suites of TLSv1.2, which is not enabled",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(values: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(values, {})
    assert expected in str(raised.value)
    assert str(raised.value).isprintable()


def test_suites_have_openssls_names() -> None:
    assert ciphers_of(SslSettings()).split(":")[:2] == ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]
    one = SslSettings(cipher_suites=" TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, ")
    assert ciphers_of(one) == "ECDHE-RSA-CHACHA20-POLY1305"


def test_versions_are_in_order() -> None:
    assert protocols_of(SslSettings(enabled_protocols="TLSv1.3, TLSv1.2")) == ["TLSv1.2", "TLSv1.3"]
