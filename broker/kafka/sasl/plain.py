"""PLAIN (RFC 4616), and its users in a file with hashed passwords.

In each line of the file are a name, a colon, and the hash of a password by scrypt in the usual notation:

    billing:$scrypt$ln=14,r=8,p=1$SALT$HASH

Lines that are empty or begin with `#` are left out. One hash is computed at a time, in a thread: clients with wrong
passwords take at most one core. Addresses take turns, few clients of each wait, and those that leave do not. A correct
password is recognised again by a short digest, whose key is drawn at the start of the process, so that reconnecting
clients do not wait.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed, TooManyAttempts

SCRYPT_LN: Final = 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
MEMORY_BYTES_MAX: Final = 256 << 20
"""Memory that the hash of a user may take."""
CHECK_S: Final = 1.0
"""Interval of checks for a changed file. It is read when two checks in a row find the same change."""
PARTS: Final = 3
WAITING_MAX: Final = 20
"""Clients of an address that wait for their hashes: about a second."""
_HASH: Final = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")

_log = structlog.get_logger("network")


class UsersFileError(OSError):
    """The file of users cannot be used. The text is the one line to show, and holds no hash."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The hash of a password by scrypt."""

    ln: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @property
    def memory_bytes(self) -> int:
        """Memory that computing it takes."""
        return 128 * self.r * (1 << self.ln) + 128 * self.r * self.p

    def fits(self, password: bytes) -> bool:
        """Return whether it is the hash of this password. Takes some 50 ms."""
        found = hashlib.scrypt(
            password,
            salt=self.salt,
            n=1 << self.ln,
            r=self.r,
            p=self.p,
            maxmem=2 * self.memory_bytes,
            dklen=len(self.digest),
        )
        return hmac.compare_digest(found, self.digest)

    def to_text(self) -> str:
        """Return it in the notation of the file."""
        salt, digest = (base64.b64encode(each).decode().rstrip("=") for each in (self.salt, self.digest))
        return f"$scrypt$ln={self.ln},r={self.r},p={self.p}${salt}${digest}"


def hash_password(password: str, salt: bytes) -> PasswordHash:
    """Return the hash of a password. Takes some 50 ms."""
    n, r, p = 1 << SCRYPT_LN, SCRYPT_R, SCRYPT_P
    digest = hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * r * n, dklen=HASH_BYTES)
    return PasswordHash(SCRYPT_LN, r, p, salt, digest)


def parse_hash(text: str) -> PasswordHash | None:
    """Return a hash in the notation of the file; None if it is not one, or takes too much memory."""
    found = _HASH.fullmatch(text)
    if found is None:
        return None
    ln, r, p = (int(found[group]) for group in (1, 2, 3))
    try:
        salt, digest = (base64.b64decode(found[group] + "=" * (-len(found[group]) % 4)) for group in (4, 5))
    except binascii.Error:
        return None
    made = PasswordHash(ln, r, p, salt, digest)
    usable = ln >= 1 and r >= 1 and 1 <= p <= r and len(digest) >= SALT_BYTES
    return made if usable and made.memory_bytes <= MEMORY_BYTES_MAX else None


def read_users(path: Path) -> Mapping[str, PasswordHash]:
    """Return the users of a file. Raises UsersFileError."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "not UTF-8"
        raise UsersFileError(f"setting sasl.plain_users_file: {path}: {reason}") from None
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, text = line.partition(":$")
        found = parse_hash(f"${text.rstrip()}")
        if not name or found is None:
            raise UsersFileError(
                f"setting sasl.plain_users_file: {path}, line {number}: expected NAME:HASH, with a hash that "
                "`anabranch user hash` has printed"
            )
        if name in users:
            raise UsersFileError(f"setting sasl.plain_users_file: {path}, line {number}: {name!r} is named twice")
        users[name] = found
    return users


class PlainUsers:
    """The users of the file, read again when it changes. Raises UsersFileError."""

    def __init__(self, path: Path, random_bytes: Callable[[int], bytes]) -> None:
        self._path = path
        self._key = random_bytes(HASH_BYTES)
        self._nobody = PasswordHash(SCRYPT_LN, SCRYPT_R, SCRYPT_P, random_bytes(SALT_BYTES), random_bytes(HASH_BYTES))
        """Hash that is computed for unknown users, so that they take as long as others."""
        self._turns = _Turns()
        self._verified: dict[str, bytes] = {}
        """Digest of the password that was right last, by user."""
        self._seen = self._changed = self._signature()
        self._users = read_users(path)

    async def check(self, user: str, password: str, host: str) -> bool:
        """Return whether a client at an address has the password of a user. Raises TooManyAttempts."""
        encoded = password.encode()
        digest = hmac.digest(self._key, user.encode() + b"\0" + encoded, "sha256")
        if self._was_right(user, digest):
            return True
        await self._turns.wait(host)
        if self._was_right(user, digest):
            self._turns.give()
            return True
        users = self._users
        found = users.get(user)

        def end_turn(hashing: asyncio.Future[bool]) -> None:
            if found is not None and users is self._users and not hashing.exception() and hashing.result():
                self._verified[user] = digest
            self._turns.give()

        hashing = asyncio.get_running_loop().run_in_executor(None, (found or self._nobody).fits, encoded)
        hashing.add_done_callback(end_turn)  # the thread goes on if this wait is cancelled
        await asyncio.wait((hashing,))
        return hashing.result() and found is not None

    def _was_right(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._verified.get(user, b""), digest)

    async def run(self) -> None:
        """Read the file again when it has changed, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.look()

    def look(self) -> None:
        """Look for a change once. A file that cannot be used is reported, and the users of before remain."""
        found = self._signature()
        if found == self._seen or found != self._changed:
            self._changed = found
            return
        self._seen = found
        try:
            self._users = read_users(self._path)
        except UsersFileError as error:
            _log.error("the changed file of users cannot be used; those of before remain", reason=str(error))
        else:
            self._verified = {}
            _log.info("the file of users has changed and is in use", users=len(self._users))

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


class _Turns:
    """A turn for one at a time, in which addresses follow each other."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Those that wait by their addresses, the one whose turn is next first."""

    async def wait(self, host: str) -> None:
        """Take the turn when it comes. Raises TooManyAttempts."""
        if not self._is_taken:
            self._is_taken = True
            return
        queue = self._waiting.setdefault(host, deque())
        if len(queue) >= WAITING_MAX:
            raise TooManyAttempts(f"{WAITING_MAX} clients of this address wait for the check of their passwords")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give()  # it had come
            elif turn in queue:
                queue.remove(turn)
                if not queue:
                    del self._waiting[host]
            raise

    def give(self) -> None:
        """Give the turn to the next one."""
        while self._waiting:
            host = next(iter(self._waiting))
            queue = self._waiting.pop(host)
            turn = queue.popleft()
            if queue:
                self._waiting[host] = queue
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_taken = False


class PlainExchange:
    """One exchange: a single token, with a name and a password."""

    expires_ms: int | None = None
    uses_delegation_token = False

    def __init__(self, users: PlainUsers, host: str) -> None:
        """Begin with a client at an address."""
        self._users = users
        self._host = host
        self._ended = False
        self.user = ""
        self.is_complete = False

    async def step(self, token: bytes) -> bytes:
        """Return the answer to the token, which is empty. Raises AuthenticationFailed, TooManyAttempts."""
        if self._ended:
            raise AuthenticationFailed("a token after the end of the exchange")
        self._ended = True
        authzid, self.user, password = parse_plain(token)
        if not await self._users.check(self.user, password, self._host):
            raise AuthenticationFailed(
                "unknown user or wrong password", answer="Authentication failed: Invalid username or password"
            )
        if authzid and authzid != self.user:
            raise AuthenticationFailed(
                "the client wants to act for another user",
                answer="Authentication failed: Client requested an authorization id that is different from username",
            )
        self.is_complete = True
        return b""


def parse_plain(token: bytes) -> tuple[str, str, str]:
    """Return the name to act for, the user's name and the password. Raises AuthenticationFailed."""
    try:
        parts = token.decode("utf-8").split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the message is not UTF-8") from None
    if len(parts) != PARTS:
        found = min(len(parts), PARTS + 1)
        raise AuthenticationFailed(
            f"the message has {len(parts)} parts, expected {PARTS}",
            answer=f"Invalid SASL/PLAIN response: expected {PARTS} tokens, got {found}",
        )
    authzid, user, password = parts
    if not user:
        raise AuthenticationFailed(
            "the name of the user is empty", answer="Authentication failed: username not specified"
        )
    if not password:
        raise AuthenticationFailed("the password is empty", answer="Authentication failed: password not specified")
    return authzid, user, password
