"""SASL: handshakes, exchanges and their failures, authentication again, and the credentials of users."""

from dataclasses import replace
from typing import Any

from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.kafka.sasl.scram_client import ScramClient, salted_password
from tests.differential.script import Script

SASL = "sasl"
"""Connections whose names begin so go to the listener with SASL."""
PASSWORD = "of alice"
"""Password of the user alice of PLAIN, and of the users that a script makes."""
SHA_256, SHA_512 = 1, 2
NAMES = {SHA_256: "SCRAM-SHA-256", SHA_512: "SCRAM-SHA-512"}
VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")
SERVED = MetadataRequest(topics=())


def handshake(mechanism: str = "PLAIN") -> SaslHandshakeRequest:
    return SaslHandshakeRequest(mechanism=mechanism)


def token(data: str | bytes) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=data.encode() if isinstance(data, str) else data)


def upsertion(user: str, mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = b"salt") -> Any:
    salted = salted_password(NAMES.get(mechanism, "SCRAM-SHA-256"), PASSWORD, salt, max(1, iterations))
    return ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def alter(*changes: Any) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )


def make_user(script: Script, user: str) -> None:
    script.ask(alter(upsertion(user)), 0)
    wanted = DescribeUserScramCredentialsRequest(users=[UserName(name=user)])
    script.until(wanted, 0, lambda answer: not answer.results[0].error_code)


def sasl_handshakes(script: Script) -> None:
    for version in (0, 1):
        script.call("where nobody authenticates", handshake(), version)
        for mechanism in ("GSSAPI", "", "plain"):
            script.call(f"mechanism {mechanism}", handshake(mechanism), version, on=SASL)
            script.call("after it failed", handshake(), 1, on=SASL)
            script.drop(SASL)
    for version in (0, 1, 2):
        script.call("a token where nobody authenticates", token(b""), version)
    script.call("tokens without requests", handshake(), 0, on=SASL)
    script.drop(SASL)
    for request, version in ((SERVED, 9), (ListGroupsRequest(), 4), (token("\0a\0b"), 2)):
        script.call("before a handshake", request, version, on=SASL)
        script.ask(VERSIONS, 3, on=SASL)
        script.call("before a handshake, after versions", request, version, on=SASL)
    script.ask(VERSIONS, 3, on=SASL)
    script.call("versions twice", VERSIONS, 3, on=SASL)
    script.call("versions with a bad name", ApiVersionsRequest(client_software_name="-"), 3, on=SASL)
    for what, cluster_id, node_id in (("another broker", "a", 99), ("a broker without cluster", None, 1)):
        wanted = replace(VERSIONS, cluster_id=cluster_id, node_id=node_id)
        script.call(f"versions of {what}", wanted, 5, on=SASL)
        script.call(f"a handshake after those of {what}", handshake(), 1, on=SASL)
        script.drop(SASL)
    script.ask(VERSIONS, 3, on=SASL)
    script.call("a handshake after versions", handshake(), 1, on=SASL)
    script.call("a handshake twice", handshake(), 1, on=SASL)
    script.call("after a handshake twice", handshake(), 1, on=SASL)
    for other, version in (
        (VERSIONS, 3),
        (ListGroupsRequest(), 4),
        (FindCoordinatorRequest(key="a"), 3),
        (handshake("GSSAPI"), 1),
    ):
        script.drop(SASL)
        script.ask(handshake(), 1, on=SASL)
        script.call("instead of a token", other, version, on=SASL)
        script.call("after something instead of a token", token("\0alice\0" + PASSWORD), 2, on=SASL)


def sasl_plain(script: Script) -> None:
    for version in (0, 1, 2):
        script.call("mechanism", handshake(), 1, on=SASL)
        script.call("authenticated", token(f"\0alice\0{PASSWORD}"), version, on=SASL)
        script.call("served", SERVED, 9, on=SASL)
        script.call("a token too many", token("\0a\0b"), version, on=SASL)
        script.call("still served", SERVED, 9, on=SASL)
        script.drop(SASL)
        for name, text in (
            ("for oneself", f"alice\0alice\0{PASSWORD}"),
            ("for another", f"bob\0alice\0{PASSWORD}"),
            ("wrong password", "\0alice\0wrong"),
            ("unknown user", "\0mallory\0wrong"),
            ("no user", f"\0\0{PASSWORD}"),
            ("no password", "\0alice\0"),
            ("a name alone", "alice"),
            ("nothing", ""),
        ):
            script.ask(handshake(), 1, on=SASL)
            script.call(name, token(text), version, on=SASL)
            script.call(f"after {name}", SERVED, 9, on=SASL)
            script.drop(SASL)


def begin_scram(script: Script, client: ScramClient) -> None:
    """Choose the mechanism on a new connection."""
    script.drop(SASL)
    script.ask(handshake(client.mechanism), 1, on=SASL)


def sasl_scram(script: Script) -> None:
    make_user(script, "sasl-a")
    make_user(script, "sasl-b,=")
    for name, client in (
        ("right", ScramClient("sasl-a", PASSWORD)),
        ("a name with escapes", ScramClient("sasl-b,=", PASSWORD)),
        ("an extension", ScramClient("sasl-a", PASSWORD, extensions=",x=1")),
        ("wrong password", ScramClient("sasl-a", "wrong")),
        ("wrong nonce", ScramClient("sasl-a", PASSWORD, server_nonce="clientnonce")),
        ("for oneself", ScramClient("sasl-a", PASSWORD, header="n,a=sasl-a,")),
        ("another header at the end", ScramClient("sasl-a", PASSWORD, bound=b"y,,")),
        ("an extension at the end", ScramClient("sasl-a", PASSWORD, tail=",x=1")),
    ):
        begin_scram(script, client)
        first = script.call(f"{name}: first", token(client.first()), 2, on=SASL)
        script.call(f"{name}: final", token(client.final(first.auth_bytes)), 2, on=SASL)
        script.call(f"{name}: after it", SERVED, 9, on=SASL)
    for name, client in (
        ("for another", ScramClient("sasl-a", PASSWORD, header="n,a=sasl-b,")),
        ("without a credential for the mechanism", ScramClient("sasl-a", PASSWORD, "SCRAM-SHA-512")),
        ("unknown user", ScramClient("sasl-x", PASSWORD)),
        ("binding demanded", ScramClient("sasl-a", PASSWORD, header="p=tls-unique,,")),
        ("binding possible", ScramClient("sasl-a", PASSWORD, header="y,,")),
        ("not ASCII", ScramClient("s\u00e4sl", PASSWORD)),
        ("no nonce", ScramClient("sasl-a", PASSWORD, nonce="")),
    ):
        begin_scram(script, client)
        script.call(name, token(client.first()), 2, on=SASL)
    for at, data in enumerate((b"", b"n", b"n,,", b"\xff", b"n,,n=sasl-a", b"c=biws,r=a,p=AAAA")):
        script.drop(SASL)
        script.ask(handshake("SCRAM-SHA-256"), 1, on=SASL)
        script.call(f"malformed {at}", token(data), 2, on=SASL)
    script.drop(SASL)
    script.ask(handshake("SCRAM-SHA-256"), 1, on=SASL)
    script.call("first", token(b"n,,n=sasl-a,r=a"), 2, on=SASL)
    script.call("first again", token(b"n,,n=sasl-a,r=a"), 2, on=SASL)


def sasl_again(script: Script) -> None:
    def begin(name: str, user: str, mechanism: str = "PLAIN") -> None:
        script.call(f"{name}: handshake", handshake(mechanism), 1, on=SASL)
        script.call(f"{name}: token", token(user), 2, on=SASL)
        script.call(f"{name}: after it", SERVED, 9, on=SASL)

    alice = f"\0alice\0{PASSWORD}"
    begin("first", alice)
    begin("again", alice)
    begin("too soon", alice)
    for name, user, mechanism in (
        ("another user", "\0bob\0of bob", "PLAIN"),
        ("another mechanism", "n,,n=sasl-a,r=a", "SCRAM-SHA-256"),
        ("wrong password", "\0alice\0wrong", "PLAIN"),
        ("no mechanism", alice, "GSSAPI"),
    ):
        script.drop(SASL)
        begin(f"before {name}", alice)
        begin(name, user, mechanism)
    script.drop(SASL)
    begin("before something else", alice)
    script.call("handshake", handshake(), 1, on=SASL)
    script.call("something else", SERVED, 9, on=SASL)
    script.call("after something else", SERVED, 9, on=SASL)


def scram_users(script: Script) -> None:
    def describe(*names: str) -> DescribeUserScramCredentialsRequest:
        return DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names])

    def settled(name: str, count: int) -> None:
        """Wait until a change is seen, which Apache Kafka answers before."""
        script.until(describe(name), 0, lambda answer: len(answer.results[0].credential_infos) == count)

    def removal(user: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
        return ScramCredentialDeletion(name=user, mechanism=mechanism)

    script.call("described: unknown", describe("su-x"), 0)
    script.call("described twice", describe("su-x", "su-x", "su-y"), 0)
    script.call("described: no name", describe(""), 0)
    script.call("nothing", alter(), 0)
    script.call("added", alter(upsertion("su-a"), upsertion("su-b", SHA_512, 8192)), 0)
    settled("su-a", 1)
    settled("su-b", 1)
    script.call("described", describe("su-a", "su-b"), 0)
    script.call("another mechanism", alter(upsertion("su-a", SHA_512)), 0)
    settled("su-a", 2)
    script.call("described with two", describe("su-a"), 0)
    script.call("changed", alter(upsertion("su-a", SHA_256, 16384)), 0)
    for name, change in (
        ("few iterations", upsertion("su-c", iterations=4095)),
        ("no iterations", upsertion("su-c", iterations=0)),
        ("negative iterations", upsertion("su-c", iterations=-1)),
        ("many iterations", upsertion("su-c", iterations=16385)),
        ("mechanism 0", upsertion("su-c", 0)),
        ("mechanism 3", upsertion("su-c", 3)),
        ("no name", upsertion("")),
        ("removal of an unknown user", removal("su-c")),
        ("removal of an unknown mechanism", removal("su-b", SHA_256)),
        ("removal by mechanism 0", removal("su-a", 0)),
        ("removal without a name", removal("")),
        ("no salt", upsertion("su-d", salt=b"")),
    ):
        script.call(name, alter(change), 0)
    script.call("one user twice", alter(upsertion("su-a"), upsertion("su-a")), 0)
    script.call("one user with both mechanisms", alter(upsertion("su-a"), upsertion("su-a", SHA_512)), 0)
    script.call("removed and added", alter(removal("su-a"), upsertion("su-a", SHA_512)), 0)
    script.call("thrice", alter(removal("su-a"), upsertion("su-a"), upsertion("su-a", SHA_512)), 0)
    script.call("bad and twice", alter(upsertion("su-a", iterations=1), upsertion("su-a")), 0)
    script.call("good and bad", alter(upsertion("su-e"), upsertion("su-f", iterations=1)), 0)
    settled("su-e", 1)
    script.call("removed", alter(removal("su-a"), removal("su-b", SHA_512), removal("su-e")), 0)
    settled("su-e", 0)
    script.call("described after it", describe("su-a", "su-b", "su-e"), 0)


SCRIPTS = (sasl_handshakes, sasl_plain, sasl_scram, sasl_again, scram_users)
