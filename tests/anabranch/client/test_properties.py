"""The format of client properties, their sources, and that no error shows a value."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.errors import PropertyError
from anabranch.client.properties import is_secret, parse_jaas, parse_properties, quote_jaas
from anabranch.client.settings import client_settings, gather

MARK = "MARKED-SECRET"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_the_format_is_that_of_java() -> None:
    text = (
        "# comment\n! comment\n\n  a = 1 \nb:2\nc 3\nd=x\\\n   y\ne=a\\=b\\u0041\\t\\\\\nf\ng=\r\nh\\ i=j=k\n"
        "sasl.mechanisms=PLAIN\nlast=\\"
    )
    assert parse_properties(text, "file") == {
        "a": "1 ", "b": "2", "c": "3", "d": "xy", "e": "a=bA\t\\", "f": "", "g": "", "h i": "j=k",
        "sasl.mechanism": "PLAIN", "last": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"a=1\npassword={MARK}é\n", "file:2: not ASCII"),
        (f"={MARK}\n", "file:1: expected NAME=VALUE"),
        (f"a={MARK}\\u00x\n", "file:1: expected four hexadecimal digits"),
    ],
)
def test_an_invalid_line_is_named_and_not_shown(text: str, reason: str) -> None:
    with pytest.raises(PropertyError) as caught:
        parse_properties(text, "file")
    assert str(caught.value).startswith(reason)
    assert MARK not in str(caught.value)


def test_login_modules() -> None:
    text = f' {SCRAM}  required\n username="al\\"ice"\n password=\'p;"\' tokenauth=true ; '
    login = parse_jaas(text)
    assert login.module == "ScramLoginModule"
    assert login.options == {"username": 'al"ice', "password": 'p;"', "tokenauth": "true"}
    assert parse_jaas(f'{SCRAM} required password="a\\tb\\101\\0\\s";').options == {"password": "a\tbA\0s"}
    quoted = quote_jaas('a"b\\c;')
    assert parse_jaas(f"{SCRAM} required password={quoted};").options == {"password": 'a"b\\c;'}


@pytest.mark.parametrize("text", ["", MARK, f'{SCRAM} required password="{MARK}"', f"{SCRAM} needed a={MARK};"])
def test_an_invalid_login_is_not_shown(text: str) -> None:
    with pytest.raises(PropertyError, match=r"property sasl\.jaas\.config: expected") as caught:
        parse_jaas(text)
    assert MARK not in str(caught.value)


@given(st.text(alphabet=st.sampled_from("\\=\"'; :\tu0a#\n\r.é"), max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (lambda: parse_properties(text, "file"), lambda: parse_jaas(text)):
        with suppress(PropertyError):
            parse()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")))
def test_quoted_values_come_back(value: str) -> None:
    assert parse_jaas(f"{SCRAM} required password={quote_jaas(value)};").options == {"password": value}


def test_secrets_are_known() -> None:
    secret = [
        "sasl.jaas.config", "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.truststore.password",
        "ssl.keystore.key", "ssl.key.pem", "sasl.oauthbearer.client.credentials.client.secret",
        "kafka.sasl.jaas.config", "kafka.ssl.keystore.key",
    ]  # fmt: skip
    assert all(map(is_secret, secret))
    assert not any(
        map(is_secret, ["ssl.keystore.location", "sasl.mechanism", "sasl.username", "ssl.key.location", "ssl.ca.pem"])
    )


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=a\nsasl.password=a\nsasl.mechanism=PLAIN\ngroup.id=g\n")
    environment = {"KAFKA_CLIENT_SASL_PASSWORD": "b", "KAFKA_CLIENT_SASL_USERNAME": "b", "KAFKA_CLIENT_X": "x"}
    found = gather(file, {"sasl.username": "c"}, environment)
    assert found == {"sasl.username": "c", "sasl.password": "b", "sasl.mechanism": "PLAIN", "group.id": "g"}


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"security.protocol": MARK}, "security.protocol: expected one of PLAINTEXT, SSL"),
        ({"ssl.truststore": MARK}, "ssl.truststore: not supported"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": MARK}, "algorithm: expected https"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": MARK}, r"enabled\.protocols: expected TLSv1\.2 or"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": MARK * 2, "ssl.key.location": "x"}, "no certif"),
        ({"security.protocol": "SSL", "ssl.keystore.key": MARK}, "keystore.key: there is no private key"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism: expected one of PLAIN"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": MARK}, "sasl.mechanism: expected one of PLAIN"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"},
            r"PLAIN needs a password: .*KAFKA_CLIENT_SASL_PASSWORD",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{SCRAM} required a="";'},
            "PLAIN needs the module PlainLoginModule",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "expected file:///PATH"),
    ],
)
def test_properties_that_cannot_be_used(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(PropertyError, match=reason) as caught:
        client_settings(properties)
    assert MARK not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_do_not_show_secrets() -> None:
    jaas = f'{SCRAM} required username="alice" password="{MARK}";'
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    settings = client_settings(properties)
    assert settings.protocol == "SASL_SSL"
    assert settings.sasl is not None
    assert (settings.sasl.user, settings.sasl.password) == ("alice", MARK)
    assert MARK not in repr(settings) + repr(parse_jaas(jaas))
