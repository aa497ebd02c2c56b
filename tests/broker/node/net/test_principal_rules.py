"""Names of certificates, and rules that map them: the examples of KIP-371 and of Kafka, and Kafka itself."""

import base64
import itertools
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from anabranch.broker.node.net.principal_rules import PrincipalRules, RuleError, distinguished_name
from anabranch.broker.node.net.principals import NoMatchingRule
from tests.support.tools import java, kafka_class_path

DOCUMENTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)
"""The example of Kafka's documentation."""
REST = "O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
CN, OU, C = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COUNTRY_NAME


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        (DOCUMENTED, f"CN=serviceuser,OU=ServiceUsers,{REST}", "serviceuser"),
        (DOCUMENTED, f"CN=adminUser,OU=Admin,{REST}", "adminuser@admin"),
        (DOCUMENTED, f"cn=Third.User,DC=example,{REST}", "third.user"),
        (DOCUMENTED, "OU=nobody", "OU=nobody"),
        ("DEFAULT", f"CN=a,{REST}", f"CN=a,{REST}"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U , DEFAULT", "CN=d,OU=S,O=o,C=us", "D@S"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT", "OU=Dev,CN=duke", "DUKE"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Duke\, Jr,C=US", r"Duke\, Jr"),
        (r"RULE:CN=(\w+)/a\/$1\$1/", "CN=x", "a/x$1"),
        ("RULE:^CN=(.*)$/$1-$12-$2/", "CN=x", "x-x2-$2"),
        ("RULE:CN=x/$1/", "CN=x", "$1"),
        ("RULE:a*/b/", "aa", "bb"),
    ],
)
def test_the_first_rule_that_matches_names_the_principal(rules: str, name: str, expected: str) -> None:
    assert PrincipalRules(rules).map(name) == expected


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(NoMatchingRule, match=r"no rule of ssl.principal_mapping_rules applies to 'CN=b\\n'"):
        PrincipalRules("RULE:^CN=a$/a/").map("CN=b\n")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", "there is no rule"),
        ("default", "found 'default'"),
        ("RULE:", "found 'RULE:'"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1", "found 'RULE:"),
        ("DEFAULT,RULE:a/b/X", "found 'RULE:a/b/X'"),
        ("RULE:a/b/LU", "found 'RULE:a/b/LU'"),
        ("DEFAULT RULE:a/b/", "found 'DEFAULT RULE"),
        ("RULE:(/b/", "pattern '(': missing ): ("),
        (r"RULE:(?=a)a/b/", "invalid perl operator: (?="),
    ],
)
def test_an_invalid_rule_is_named(rules: str, expected: str) -> None:
    with pytest.raises(RuleError) as raised:
        PrincipalRules(rules)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    "pattern", ["^CN=(a+)+$", "^CN=(a|aa)+,O=x$", "^CN=(.*)(.*)(.*)(.*)(.*)x$", "^CN=(?:a?){500}a{500}$"]
)
def test_no_name_makes_a_rule_backtrack(pattern: str) -> None:
    """An engine that backtracks would take longer for this name than the test may take."""
    with pytest.raises(NoMatchingRule):
        PrincipalRules(f"RULE:{pattern}/$1/").map(f"CN={'a' * 10_000}!")


def test_a_name_cannot_add_to_a_replacement_or_go_around_a_pattern() -> None:
    rules = PrincipalRules("RULE:^CN=([^,]*),O=Org$/$1/")
    assert rules.map(r"CN=$1\\$0/L,O=Org") == r"$1\\$0/L"
    for name in (r"CN=a,O=Org,O=Other", "CN=a,O=Org\n", "O=x,CN=admin,O=Org", "x\nCN=admin,O=Org"):
        with pytest.raises(NoMatchingRule):
            rules.map(name)
    with pytest.raises(NoMatchingRule):  # its comma is escaped
        rules.principal(name_of((NameOID.ORGANIZATION_NAME, "Other"), (CN, "admin,O=Org")))


def name_of(*attributes: tuple[x509.ObjectIdentifier, str], kind: _ASN1Type | None = None) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value, kind) for oid, value in attributes])


NAMES = [
    name_of((C, "US"), (NameOID.ORGANIZATION_NAME, "Org"), (OU, "Service Users"), (CN, "duke")),
    name_of((CN, ' a,b=c+d<e>f#g;h"i\\j '), (NameOID.USER_ID, "u"), (NameOID.DOMAIN_COMPONENT, "d")),
    name_of((CN, "#x"), (NameOID.STREET_ADDRESS, "s"), (NameOID.LOCALITY_NAME, "l")),
    name_of((CN, "a\nb\r"), (NameOID.STATE_OR_PROVINCE_NAME, "  ")),
    name_of((CN, "\u00e9\u4e2d\U0001f600")),
    name_of((NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.SERIAL_NUMBER, "17"), (NameOID.GIVEN_NAME, "g" * 200)),
    name_of((CN, "printable"), kind=_ASN1Type.PrintableString),
    x509.Name([x509.RelativeDistinguishedName([x509.NameAttribute(CN, "a"), x509.NameAttribute(OU, "b")])]),
    x509.Name([]),
]
RULES = [
    "DEFAULT",
    DOCUMENTED,
    "RULE:.*/x/",
    "RULE:^.*CN=([^,]*).*$/$1-$2-$10/U",
    r"RULE:(?s)^CN=(.*)$/<$1>\\\$/L",
    "RULE:^nothing$/x/",
]


@pytest.mark.slow
def test_names_of_subjects_are_those_of_java(tmp_path: Path) -> None:
    cases = list(itertools.product(NAMES, RULES))
    lines = "".join(f"{base64.b64encode(name.public_bytes()).decode()}\t{rules}\n" for name, rules in cases)
    source = Path(__file__).parent / "PrincipalNames.java"
    done = subprocess.run(
        [str(java()), "-cp", kafka_class_path(), str(source)],
        input=lines.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    expected = []
    for name, rules in cases:
        try:
            principal = PrincipalRules(rules).principal(name)
        except NoMatchingRule:
            principal = "NoMatchingRule"
        expected.append(f"{distinguished_name(name)}\t{principal}\n")
    assert "".join(expected) == done.stdout.decode()
