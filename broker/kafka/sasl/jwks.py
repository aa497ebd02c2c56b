"""The public keys of an identity provider: a JSON web key set (RFC 7517) in a file or at a URL.

A file is read again when it changes. A URL is read again after a time, and when a token names a key that is not known,
but not more often than once in ten seconds: the provider has changed its keys, or a client invents key ids. A set that
cannot be read is reported, and tried again every second; until then the old keys stay in use.
"""

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from anabranch.broker.kafka.sasl.oauthbearer import ALGORITHMS, PublicKey

CHECK_S: Final = 1.0
"""Interval of checks for a changed file, and for a URL that is due or could not be read."""
UNKNOWN_KEY_S: Final = 10.0
"""Shortest time between two reads of a URL that succeed."""
TIMEOUT_S: Final = 10.0
BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
_UNREADABLE: Final = (JoseError, UnsupportedAlgorithm, AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""Errors of the parser of keys."""
_TYPES: Final[dict[str, type[PublicKey]]] = {"RSA": RSAKey, "EC": ECKey}

_log = structlog.get_logger("network")


class JwksError(OSError):
    """The set of keys cannot be used. The text is the one line to show."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses to be sent elsewhere: another place may have other keys."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def parse_keys(content: bytes) -> Sequence[PublicKey]:
    """Return the public signing keys of a set; others are left out. Raises JwksError if there is none."""
    try:
        listed = json.loads(content)["keys"]
        entries = [each for each in listed if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise JwksError("expected a JSON web key set") from None
    keys: list[PublicKey] = []
    for entry in entries[:KEYS_MAX]:
        kind = _TYPES.get(str(entry.get("kty")))
        if kind is None or entry.get("use", "sig") != "sig":
            continue
        try:
            if kind is RSAKey and not _is_strong(str(entry["n"])):
                continue
            key = kind.import_key({name: value for name, value in entry.items() if name not in {"use", "key_ops"}})
            if not key.is_private:
                keys.append(key)
        except _UNREADABLE:
            continue
    if not keys:
        raise JwksError(f"there is no public key for signatures of {', '.join(ALGORITHMS)}")
    return keys


def _is_strong(modulus: str) -> bool:
    """Return whether a modulus of RSA is long enough. Raises ValueError."""
    decoded = base64.urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4))
    return int.from_bytes(decoded, "big").bit_length() >= RSA_BITS_MIN


class Jwks:
    """The keys, as they are in force. `clock` measures seconds. Raises JwksError for a file that cannot be used."""

    def __init__(self, url: str, *, refresh_s: float, clock: Callable[[], float]) -> None:
        self._url = url
        self._path = Path(urlsplit(url).path) if url.startswith("file:") else None
        self._refresh_s = refresh_s
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read_s: float | None = None
        """Time of the last attempt to read a URL."""
        self._failure = ""
        """Reason of the failure of the last attempt; empty if it succeeded."""
        self._seen = self._changed = self._signature()
        self._keys: Sequence[PublicKey] = [] if self._path is None else self._load()

    async def find(self, kid: str | None, key_type: str) -> Sequence[PublicKey]:
        """Return the keys that may have signed a token: those with the id, or all of the type if it names none."""
        found = self._of(kid, key_type)
        if not found and self._path is None:
            await self._read(UNKNOWN_KEY_S)
            found = self._of(kid, key_type)
        return found

    def _of(self, kid: str | None, key_type: str) -> Sequence[PublicKey]:
        return [key for key in self._keys if key.key_type == key_type and (kid is None or key.kid == kid)]

    async def run(self) -> None:
        """Keep the keys current, until cancelled."""
        while True:
            if self._path is None:
                await self._read(self._refresh_s)
            else:
                self.look()
            await asyncio.sleep(CHECK_S)

    async def _read(self, age_s: float) -> None:
        """Read the URL, unless that was tried within `age_s`, or within a second if it failed."""
        async with self._reading:
            now_s = self._clock()
            if self._read_s is not None and now_s - self._read_s < (min(CHECK_S, age_s) if self._failure else age_s):
                return
            self._read_s = now_s
            self._use(await asyncio.to_thread(self._attempt))

    def look(self) -> None:
        """Look for a change of the file once."""
        found = self._signature()
        if found == self._seen or found != self._changed:
            self._changed = found
            return
        self._seen = found
        self._use(self._attempt())

    def _attempt(self) -> Sequence[PublicKey] | JwksError:
        try:
            return self._load()
        except JwksError as error:
            return error

    def _use(self, found: Sequence[PublicKey] | JwksError) -> None:
        failure, self._failure = self._failure, str(found) if isinstance(found, JwksError) else ""
        if not isinstance(found, JwksError):
            self._keys = found
            _log.info("keys of the identity provider are in use", keys=len(found))
        elif failure != self._failure:
            _log.error("keys of the identity provider cannot be read; those of before remain", reason=self._failure)

    def _load(self) -> Sequence[PublicKey]:
        """Read the keys. Raises JwksError."""
        try:
            return parse_keys(_download(self._url) if self._path is None else self._path.read_bytes())
        except JwksError as error:
            raise JwksError(f"setting sasl.oauthbearer_jwks_url: {self._url}: {error}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise JwksError(f"setting sasl.oauthbearer_jwks_url: {self._url}: {reason}") from None

    def _signature(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _download(url: str) -> bytes:
    """Return what a URL, which was checked with the settings, has. Raises OSError, JwksError."""
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise JwksError(f"the answer has status {error.code}") from None
    if len(content) > BYTES_MAX:
        raise JwksError(f"it is larger than {BYTES_MAX} bytes")
    return content
