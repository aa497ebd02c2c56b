"""The client's side of SCRAM, written from RFC 5802 independently of the node's, with slips on request."""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from functools import cache
from typing import Final

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@cache
def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password, remembered as clients do."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


@dataclass
class ScramClient:
    """One exchange of a client."""

    user: str
    password: str
    mechanism: str = "SCRAM-SHA-256"
    nonce: str = "clientnonce"
    header: str = "n,,"
    extensions: str = ""
    bound: bytes | None = None
    """Header that the final message repeats; None: the one of the first message."""
    server_nonce: str | None = None
    """Nonce of the final message; None: the one that the node has sent."""
    tail: str = ""
    _signed: str = field(default="", init=False)
    _salted: bytes = field(default=b"", init=False)

    @property
    def bare(self) -> str:
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self.nonce}{self.extensions}"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, answer: bytes) -> bytes:
        server_first = answer.decode()
        nonce, salt, iterations = (part[2:] for part in server_first.split(","))
        self._salted = salted_password(self.mechanism, self.password, base64.b64decode(salt), int(iterations))
        header = self.header.encode() if self.bound is None else self.bound
        unproved = f"c={base64.b64encode(header).decode()},r={self.server_nonce or nonce}{self.tail}"
        self._signed = f"{self.bare},{server_first},{unproved}"
        client_key = self._mac(self._salted, b"Client Key")
        stored_key = hashlib.new(HASHES[self.mechanism], client_key).digest()
        signature = self._mac(stored_key, self._signed.encode())
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def accepts(self, answer: bytes) -> bool:
        """Return whether the node has proved that it knows the password, too."""
        signature = self._mac(self._mac(self._salted, b"Server Key"), self._signed.encode())
        return answer == b"v=" + base64.b64encode(signature)

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, HASHES[self.mechanism]).digest()
