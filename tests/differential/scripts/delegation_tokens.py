"""Delegation tokens (KIP-48): made, described, renewed and expired, and clients that use them."""

import base64
import time
from collections.abc import Sequence
from typing import Any

from anabranch.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from anabranch.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from anabranch.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from anabranch.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.broker.kafka.sasl.scram_client import ScramClient
from tests.differential.script import Script
from tests.differential.scripts.sasl import SASL, SERVED, handshake, token

ALICE, BOB, TOKEN = f"{SASL} alice", f"{SASL} bob", f"{SASL} token"
HOUR_MS = 3_600_000
LONG_MAX = 2**63 - 1


def log_in(script: Script) -> None:
    """Authenticate as two users with passwords."""
    for name, on in (("alice", ALICE), ("bob", BOB)):
        script.ask(handshake(), 1, on=on)
        assert not script.ask(token(f"\0{name}\0of {name}"), 2, on=on).error_code


def creation(*renewers: str, max_lifetime_ms: int = -1, owner: str | None = None, kind: str = "User") -> Any:
    return CreateDelegationTokenRequest(
        owner_principal_type=None if owner is None else kind,
        owner_principal_name=owner,
        renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for name in renewers],
        max_lifetime_ms=max_lifetime_ms,
    )


def describing(*owners: str, kind: str = "User") -> Any:
    asked = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for name in owners]
    return DescribeDelegationTokenRequest(owners=asked)


def renewal(token_hmac: bytes, period_ms: int = -1) -> Any:
    return RenewDelegationTokenRequest(hmac=token_hmac, renew_period_ms=period_ms)


def expiry(token_hmac: bytes, period_ms: int = -1) -> Any:
    return ExpireDelegationTokenRequest(hmac=token_hmac, expiry_time_period_ms=period_ms)


def make(script: Script, *renewers: str, owner: str, on: str = ALICE) -> Any:
    """Create a token, and wait until it is known, which Apache Kafka answers before."""
    made = script.ask(creation(*renewers, owner=owner), 3, on=on)
    assert not made.error_code, made
    script.until(describing(owner), 3, lambda answer: made.token_id in {each.token_id for each in answer.tokens}, on=on)
    return made


def is_past(until_ms: int, seen_ms: int) -> bool:
    """Return whether a token has the time that it was given, and whether it is over."""
    return seen_ms == until_ms and time.time() * 1000 > until_ms + 1


def token_requests(script: Script) -> None:
    log_in(script)
    for version in (1, 2, 3):
        plain = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        for name, on in (("nobody", "main"), ("alice", ALICE)):
            script.call(f"{name} creates", plain, version, on=on)
        script.call("nobody describes", describing("alice"), version)
        script.call("describe no owners", describing(), version, on=ALICE)
        script.call("describe an unknown owner", describing("td-nobody"), version, on=ALICE)
    for version in (1, 2):
        script.call("nobody renews", renewal(b"x"), version)
        script.call("nobody expires", expiry(b"x"), version)
        for token_hmac in (b"", b"x", bytes(64)):
            script.call(f"renew unknown {len(token_hmac)}", renewal(token_hmac), version, on=ALICE)
            script.call(f"expire unknown {len(token_hmac)}", expiry(token_hmac), version, on=ALICE)
            script.call(f"expire unknown {len(token_hmac)} later", expiry(token_hmac, 5), version, on=ALICE)
    script.call("nobody creates for another", creation(owner="td-a"), 3)
    for name, request in (
        ("for another", creation(owner="td-a")),
        ("for oneself by name", creation(owner="alice")),
        ("for an empty name", creation(owner="")),
        ("renewed by a group", creation("td-g", kind="Group")),
        ("renewed by nobody", creation("")),
        ("renewed twice by one", creation("bob", "bob")),
        ("a lifetime of 0", creation(max_lifetime_ms=0)),
        ("an hour", creation(max_lifetime_ms=HOUR_MS)),
        ("very long", creation(max_lifetime_ms=LONG_MAX)),
        ("least", creation(max_lifetime_ms=-(2**63))),
        ("for a group", creation(owner="td-g", kind="Group")),
    ):
        answer = script.call(name, request, 3, on=ALICE)
        lifetime_ms = answer.max_timestamp_ms - answer.issue_timestamp_ms
        script.note(f"{name}: lifetimes", [lifetime_ms, answer.expiry_timestamp_ms - answer.issue_timestamp_ms])


def token_changes(script: Script) -> None:
    log_in(script)
    made = make(script, "bob", owner="tc-a")
    mine = make(script, "tc-r", owner="alice")
    for version in (1, 2, 3):
        script.call("described", describing("tc-a"), version, on=ALICE)
        script.call("described by its renewer", describing("tc-r"), version, on=ALICE)
        script.call("described by nobody of the kind", describing("tc-r", kind="Group"), version, on=ALICE)
    for version in (1, 2):
        script.call("a requester renews", renewal(made.hmac), version, on=ALICE)
        script.call("a requester expires", expiry(made.hmac), version, on=ALICE)
        for name, request in (
            ("renew", renewal(made.hmac)),
            ("renew for 0", renewal(made.hmac, 0)),
            ("renew for an hour", renewal(made.hmac, HOUR_MS)),
            ("renew for long", renewal(made.hmac, 100 * 24 * HOUR_MS)),
            ("expire in an hour", expiry(made.hmac, HOUR_MS)),
            ("expire late", expiry(made.hmac, LONG_MAX)),
        ):
            answer = script.call(f"a renewer: {name}", request, version, on=BOB)
            script.note(f"{name}: hours", round((answer.expiry_timestamp_ms - made.issue_timestamp_ms) / HOUR_MS))
    script.call("another renews", renewal(mine.hmac), 2, on=BOB)
    script.call("another expires", expiry(mine.hmac), 2, on=BOB)
    script.call("the owner renews", renewal(mine.hmac), 2, on=ALICE)
    until_ms = script.call("expires now", expiry(mine.hmac, 0), 2, on=ALICE).expiry_timestamp_ms
    # A change before this one is seen would undo it in Apache Kafka.
    seen = describing("tc-r")
    script.until(seen, 3, lambda answer: is_past(until_ms, answer.tokens[0].expiry_timestamp), on=ALICE)
    script.call("renew an expired one", renewal(mine.hmac), 2, on=ALICE)
    script.call("expire an expired one later", expiry(mine.hmac, 5), 2, on=ALICE)
    script.call("expire an expired one", expiry(mine.hmac), 2, on=ALICE)
    script.call("removed", expiry(made.hmac), 2, on=BOB)
    script.until(describing("tc-a", "tc-r"), 3, lambda answer: not answer.tokens, on=ALICE)
    for name, request in (("renew", renewal(made.hmac)), ("expire", expiry(made.hmac))):
        script.call(f"{name} a removed one", request, 2, on=BOB)
    script.call("described when removed", describing("tc-a", "tc-r"), 3, on=ALICE)


def token_sessions(script: Script) -> None:
    log_in(script)
    made = make(script, owner="ts-a")
    right = base64.b64encode(made.hmac).decode()

    def begin(name: str, client: ScramClient) -> None:
        script.drop(TOKEN)
        script.ask(handshake(client.mechanism), 1, on=TOKEN)
        first = script.call(f"{name}: first", token(client.first()), 2, on=TOKEN)
        if first is not None and not first.error_code:
            script.call(f"{name}: final", token(client.final(first.auth_bytes)), 2, on=TOKEN)

    attempts: Sequence[tuple[str, str, str, str]] = (
        ("right", made.token_id, right, ",tokenauth=true"),
        ("right by 256", made.token_id, right, ",tokenauth=true"),
        ("capitals", made.token_id, right, ",tokenauth=TRUE"),
        ("wrong HMAC", made.token_id, "A" + right, ",tokenauth=true"),
    )
    for name, user, password, extensions in attempts:
        mechanism = "SCRAM-SHA-256" if "256" in name else "SCRAM-SHA-512"
        begin(name, ScramClient(user, password, mechanism, extensions=extensions))
        script.call(f"{name}: after it", SERVED, 9, on=TOKEN)
    for name, user, extensions in (
        ("not by token", made.token_id, ",tokenauth=false"),
        ("unknown token", "ts-x", ",tokenauth=true"),
        ("a user's name", "alice", ",tokenauth=true"),
    ):
        script.drop(TOKEN)
        script.ask(handshake("SCRAM-SHA-512"), 1, on=TOKEN)
        script.call(name, token(ScramClient(user, right, extensions=extensions).first()), 2, on=TOKEN)
    begin("a session", ScramClient(made.token_id, right, "SCRAM-SHA-512", extensions=",tokenauth=true"))
    for version in (1, 2, 3):
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        script.call("create by token", request, version, on=TOKEN)
        script.call("describe by token", describing(), version, on=TOKEN)
    for version in (1, 2):
        script.call("renew by token", renewal(made.hmac), version, on=TOKEN)
        script.call("expire by token", expiry(made.hmac), version, on=TOKEN)


SCRIPTS = (token_requests, token_changes, token_sessions)
