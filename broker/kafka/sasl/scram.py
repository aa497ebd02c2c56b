"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the node's side. Pure.

    client                                                  node
    n,,n=user,r=NONCE                               ->
                                                    <-      r=NONCE+OWN,s=salt,i=iterations
    c=biws,r=NONCE+OWN,p=proof                      ->
                                                    <-      v=signature

Invariants:

- A proof is accepted once, for the nonce of its own exchange: a recorded proof fails.
- The node has no channel binding. A client that demands it (`p=`), or says that it would have used it (`y`), is
  refused, as by Apache Kafka: only `n` is served. The client's last message must repeat the header of its first (`c=`),
  so that a change on the way is detected.
- The exchange of an unknown user takes the same steps, with a salt that never changes, and fails at the proof only.
- Names are used as they are, without SASLprep, and consist of ASCII, as in Apache Kafka.
- With the extension `tokenauth=true` the name is the id of a delegation token, and never that of a user: the password
  of a user fails there, and so does a token without the extension. The client becomes the owner of the token.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed
from anabranch.broker.node.settings.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""Names of the hash functions by mechanism."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
NONCE_BYTES: Final = 24
SALT_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
SALT_CHARACTERS: Final = 25
"""Form of salts: that of Apache Kafka's tool, so that the salt of an unknown user looks like any other."""

_USER: Final = "User:"
_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Credential of a user: enough to check a proof, not enough to make one."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def to_text(self) -> str:
        """Return it in the form in which the catalog keeps it, which is Apache Kafka's."""
        salt, stored, server = (
            base64.b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key)
        )
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


class CredentialError(ValueError):
    """A stored credential cannot be read. The text does not show it."""


def parse_credential(text: str) -> ScramCredential:
    """Return a credential in the form of `to_text`. Raises CredentialError."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        return ScramCredential(
            salt=base64.b64decode(fields["salt"], validate=True),
            stored_key=base64.b64decode(fields["stored_key"], validate=True),
            server_key=base64.b64decode(fields["server_key"], validate=True),
            iterations=int(fields["iterations"]),
        )
    except (KeyError, ValueError):
        raise CredentialError("a SCRAM credential in the catalog is damaged") from None


def iterations_of(text: str) -> int | None:
    """Return the iterations of a credential in the form of `to_text`; None if it is damaged."""
    try:
        return parse_credential(text).iterations
    except CredentialError:
        return None


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Takes some ms."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def make_credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
        iterations=iterations,
    )


def salt_of(seed: bytes) -> bytes:
    """Return a salt made of at least 16 unpredictable bytes."""
    number, letters = int.from_bytes(seed, "big"), []
    for _ in range(SALT_CHARACTERS):
        number, digit = divmod(number, len(SALT_LETTERS))
        letters.append(SALT_LETTERS[digit])
    return "".join(letters).encode()


class Credentials(Protocol):
    """The credentials of one mechanism."""

    def find(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user; None if there is none. Raises CredentialError."""
        ...

    def invent(self, mechanism: str, user: str) -> ScramCredential:
        """Return a credential that no password fits, always the same for a name that is unknown."""
        ...


class Token(Protocol):
    """A delegation token."""

    @property
    def owner(self) -> str:
        """Principal of the clients that use it."""
        ...

    @property
    def expires_ms(self) -> int:
        """Time at which it expires, ms since 1970."""
        ...


class Tokens(Protocol):
    """The delegation tokens of the cluster."""

    def find(self, token_id: str) -> Token | None:
        """Return a token that is valid now; None if there is none."""
        ...

    def credential(self, mechanism: str, token_id: str) -> ScramCredential:
        """Return the credential of a token that is valid."""
        ...

    def invent(self, mechanism: str, token_id: str) -> ScramCredential:
        """Return a credential that nothing fits, always the same for an id that is unknown."""
        ...


class ScramExchange:
    """One exchange. Tokens of SASL after its end are refused. `tokens`: None if there are no delegation tokens."""

    def __init__(
        self,
        mechanism: str,
        credentials: Credentials,
        random_bytes: Callable[[int], bytes],
        tokens: Tokens | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._credentials = credentials
        self._tokens = tokens
        self._nonce = base64.b64encode(random_bytes(NONCE_BYTES)).decode()
        self._step: Callable[[str], str] | None = self._first
        self._is_known = False
        self._credential: ScramCredential
        self._transcript = ""
        """Both first messages, as the signatures cover them."""
        self._binding = b""
        self.user = ""
        self.is_complete = False
        self.expires_ms: int | None = None
        self.uses_delegation_token = False

    async def step(self, token: bytes) -> bytes:
        """Return the answer to a token. Raises AuthenticationFailed."""
        return self.answer(token)

    def answer(self, token: bytes) -> bytes:
        """Return the answer to a token. Raises AuthenticationFailed."""
        step, self._step = self._step, None
        if step is None:
            raise AuthenticationFailed("a token after the end of the exchange")
        try:
            return step(token.decode("ascii")).encode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a message is not ASCII") from None
        except CredentialError as error:
            raise AuthenticationFailed(str(error)) from None

    def _first(self, message: str) -> str:
        found = _CLIENT_FIRST.fullmatch(message)
        if found is None:
            if message.startswith(("p=", "y,")):
                raise AuthenticationFailed("the client wants channel binding, which this node does not have")
            raise AuthenticationFailed("the client's first message is malformed")
        self.user = user = _unescape(found["name"])
        if found["authzid"] is not None and _unescape(found["authzid"]) != user:
            raise AuthenticationFailed(
                "the client wants to act for another user",
                answer="Authentication failed: Client requested an authorization id that is different from username",
            )
        self.uses_delegation_token = _is_token(found["extensions"])
        credential = self._credential = self._find(user)
        if credential.iterations < ITERATIONS_MIN:
            raise AuthenticationFailed(f"the credential has fewer than {ITERATIONS_MIN} iterations")
        self._nonce = found["nonce"] + self._nonce
        self._binding = found["header"].encode()
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._transcript = f"{found['bare']},{answer}"
        self._step = self._final
        return answer

    def _find(self, name: str) -> ScramCredential:
        """Return the credential of a user or token, or an invented one."""
        source: Credentials | Tokens
        if not self.uses_delegation_token:
            source, known = self._credentials, self._credentials.find(self._mechanism, name)
        elif self._tokens is None:
            raise AuthenticationFailed("the client has a delegation token, and this node serves none")
        else:
            source, tokens = self._tokens, self._tokens
            known = None if tokens.find(name) is None else tokens.credential(self._mechanism, name)
        invented = source.invent(self._mechanism, name)
        self._is_known = known is not None
        return known or invented

    def _final(self, message: str) -> str:
        found = _CLIENT_FINAL.fullmatch(message)
        if found is None:
            raise AuthenticationFailed("the client's final message is malformed")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise AuthenticationFailed("the client's final message has another nonce")
        if _decode(found["binding"]) != self._binding:
            raise AuthenticationFailed(
                "the client's final message does not repeat its first one: it may have been changed"
            )
        signed = f"{self._transcript},{found['unproved']}".encode()
        credential, name = self._credential, self._hash
        signature = hmac.digest(credential.stored_key, signed, name)
        proof = _decode(found["proof"])
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has a wrong size")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)
        if not (fits and self._is_known):
            if self.uses_delegation_token:
                raise AuthenticationFailed(
                    "wrong HMAC of the delegation token" if self._is_known else "unknown or expired delegation token"
                )
            raise AuthenticationFailed("wrong password" if self._is_known else "unknown user")
        if self.uses_delegation_token:
            self._become_owner()
        self.is_complete = True
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, signed, name)).decode()

    def _become_owner(self) -> None:
        """Take the user from the token. Raises AuthenticationFailed if it has been removed, or has expired, by now."""
        token = None if self._tokens is None else self._tokens.find(self.user)
        if token is None:
            raise AuthenticationFailed("the delegation token has just expired")
        self.user, self.expires_ms = token.owner.removeprefix(_USER), token.expires_ms


def _is_token(extensions: str) -> bool:
    """Return whether the extensions of the first message say that the client has a delegation token."""
    pairs = dict(part.partition("=")[::2] for part in extensions.split(","))
    return pairs.get("tokenauth", "").lower() == "true"


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("base64 is malformed") from None
