"""The client's side of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628). Pure."""

import base64
import hashlib
import hmac
import re
from collections.abc import Generator
from typing import Final

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = (PLAIN, *SCRAM_HASHES, OAUTHBEARER)
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000
"""Limit of the work that a node may ask for: about half a second."""
NONCE_BYTES: Final = 24
_SERVER_FIRST: Final = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?")


class SaslError(Exception):
    """The node's message is invalid, or does not prove that it knows the credential. The text has no secret."""


Exchange = Generator[bytes, bytes, None]
"""Tokens of the client; each is answered with the node's."""


def plain(user: str, password: str) -> Exchange:
    """Exchange of PLAIN."""
    yield f"\0{user}\0{password}".encode()


def bearer(token: str) -> Exchange:
    """Exchange of OAUTHBEARER."""
    yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def scram(mechanism: str, user: str, password: str, nonce: str, *, has_token: bool = False) -> Exchange:
    """Exchange of SCRAM. `has_token`: user and password are a delegation token. Raises SaslError.

    It ends only if the node has proved that it knows the credential, too.
    """
    name = SCRAM_HASHES[mechanism]
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={escaped},r={nonce}" + (",tokenauth=true" if has_token else "")
    first = _text((yield f"n,,{bare}".encode()))
    found = _SERVER_FIRST.fullmatch(first)
    if found is None or not found[1].startswith(nonce) or found[1] == nonce:
        raise SaslError("its first message of SCRAM is malformed")
    iterations = int(found[3])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise SaslError(f"it asks for {iterations} iterations of SCRAM: expected {ITERATIONS_MIN}-{ITERATIONS_MAX}")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), _decoded(found[2]), iterations)
    unproved = f"c=biws,r={found[1]}"
    signed = f"{bare},{first},{unproved}".encode()
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    final = _text((yield f"{unproved},p={base64.b64encode(proof).decode()}".encode()))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
    if not final.startswith("v=") or not hmac.compare_digest(_decoded(final[2:].partition(",")[0]), expected):
        raise SaslError("it does not know the password of this user: do not trust it")


def _text(token: bytes) -> str:
    try:
        return token.decode("ascii")
    except UnicodeDecodeError:
        raise SaslError("its message of SCRAM is not ASCII") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise SaslError("its message of SCRAM has malformed base64") from None
