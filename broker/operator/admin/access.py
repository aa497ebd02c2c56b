"""Access to the admin port: reading, operating, and requests that a stranger's web page makes a browser send.

A token that may operate may also read. One for schemas may use the schema registry, and nothing else, and one for
tables reads these; clients of both may send HTTP Basic, whose password is taken for the token there. A client
certificate may read, and operate if its name is among the operators.
Tokens come from settings or files; a file is read for each request, so that tokens are replaced by changing it.

A stranger's page can make the browser of an authorized person send requests. No state is changed by GET; any
other request that a browser has sent, which names an `Origin`, is refused unless its page is the console of this port.
On a port without authentication the `Host` must be an address or a name of this node: a stranger's name that leads
here (DNS rebinding) would let the page read the answers. No answer allows other origins to read it.
"""

import hmac
import ipaddress
import socket
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum, auto
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from anabranch.addresses import is_loopback
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.broker.node.settings.admin_area import TOKENS, AdminSettings
from anabranch.broker.node.settings.area import Secret
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.admin.tokens import AccessError, Token, read_tokens, token_with_user
from anabranch.extras import needed

if TYPE_CHECKING:
    from anabranch.broker.node.net.tls import Tls

TOKEN_CHARACTERS_MIN: Final = 16
_BEARER: Final = "bearer "
_BASIC: Final = "basic "
_log = structlog.get_logger("admin")


class Level(IntEnum):
    """Level of a client's permissions."""

    NOTHING = 0
    READ = 1
    OPERATE = 2


class Realm(Enum):
    """Part of the port that a request is for. Each has tokens of its own."""

    PORT = auto()
    REGISTRY = auto()
    TABLES = auto()


class TableReader(NamedTuple):
    """Somebody who reads tables."""

    principal: str
    """User whose ACLs decide, if there is an authorizer; empty: nobody's do."""
    may_load: bool
    """False: where ACLs do not decide, tables may be listed only."""


class _Identity(NamedTuple):
    """Owner of a token."""

    level: Level
    setting: str = ""
    """Name of its setting, without the end `_token`."""
    principal: str = ""


class Refusal(Exception):
    """A request is refused, with this status."""

    def __init__(self, status: HTTPStatus, reason: str, client: str = ANONYMOUS) -> None:
        super().__init__(reason)
        self.status = status
        self.client = client
        """Name of the client for the audit log."""


class AdminAccess:
    """Checks of requests, and TLS. Raises AccessError for tokens that cannot be used."""

    def __init__(
        self, settings: AdminSettings, *, is_local: bool, names: Iterable[str] = (), tls: "Tls | None" = None
    ) -> None:
        """Read the tokens once. `is_local`: the port listens on loopback; `names`: names of this node."""
        self.tls = tls
        self.is_open = settings.is_open
        """True if it is open to all."""
        self._settings = settings
        self._unreadable: dict[str, str] = {}
        """Reasons why tokens cannot be read, that were logged last."""
        self._is_local = is_local
        known = ("localhost", *names, *settings.allowed_hosts.split(","))
        self._names = frozenset(_plain(each) for each in known) - {""}
        for name in TOKENS:
            for token, _ in self._tokens(name):
                if len(token) < TOKEN_CHARACTERS_MIN:
                    raise AccessError(f"setting admin.{name}: a token has less than {TOKEN_CHARACTERS_MIN} characters")

    def warn_if_exposed(self, address: str) -> None:
        """Log a warning if strangers can use the port, or read tokens on their way."""
        if self._is_local or not (self._settings.is_open or self.tls is None):
            return
        lacks = "authentication: whoever reaches it can change everything" if self._settings.is_open else "encryption"
        _log.warning(f"the admin port is not on loopback, and has no {lacks}", address=address)

    def check(
        self,
        method: str,
        headers: Mapping[str, str],
        principal: str,
        *,
        realm: Realm = Realm.PORT,
        changes: bool | None = None,
    ) -> str:
        """Check a request of a client; its principal is `User:` and the name of its certificate.

        `changes`: it needs an operator; by default all but GET do.
        Return the name of the client for the audit log. Raises Refusal.
        """
        if method != "GET":
            self._check_page(headers)
        if self.is_open and not self._is_own(headers.get("host", "localhost")):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "without authentication, the Host must be an address or a name of this node: see admin.allowed_hosts",
            )
        if self._settings.is_open:
            return ANONYMOUS
        of_token = self._identity(headers.get("authorization", ""), realm)
        of_certificate = self._level_of(principal)
        level = max(of_token.level, of_certificate)
        client = principal if of_certificate == level else of_token.principal or f"Token:{of_token.setting}"
        if level == Level.NOTHING:
            raise Refusal(HTTPStatus.UNAUTHORIZED, "a valid bearer token or client certificate is needed")
        if changes is None:
            changes = method != "GET"
        if level < (Level.OPERATE if changes else Level.READ):
            raise Refusal(HTTPStatus.FORBIDDEN, "this token or certificate may only read", client)
        return client

    def needs_token(self, principal: str) -> bool:
        """Return whether a client needs a token to read, as its certificate, or to reach the port, is not enough."""
        return not self.is_open and self._level_of(principal) == Level.NOTHING

    def may_operate(self, headers: Mapping[str, str], principal: str) -> bool:
        """Return whether a client that may read may also change things."""
        if self._settings.is_open:
            return True
        of_token = self._identity(headers.get("authorization", ""), Realm.PORT)
        return max(of_token.level, self._level_of(principal)) >= Level.OPERATE

    def table_reader(self, headers: Mapping[str, str], principal: str) -> TableReader:
        """Return who reads tables by a request that `check` has passed."""
        of_token = self._identity(headers.get("authorization", ""), Realm.TABLES)
        if of_token.setting == "tables":
            return TableReader(of_token.principal, may_load=True)
        operates = self.may_operate(headers, principal)
        may_load = {"nobody": False, "operators": operates, "readers": True}[self._settings.records]
        return TableReader("" if operates or of_token.level else principal, may_load)

    def _check_page(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal if a browser sends a change for a page that is not this port's console."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None:
            return
        host = headers.get("host", "")
        is_own = origin is not None and origin.partition("://")[2].lower() == host.lower() != ""
        if not is_own or site not in {None, "same-origin"}:
            raise Refusal(HTTPStatus.FORBIDDEN, "pages of other origins may change nothing")

    def _is_own(self, host: str) -> bool:
        """Return whether a Host header is an address or a name of this node, with or without a port."""
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return _plain(name) in self._names
        return True

    def _level_of(self, principal: str) -> Level:
        settings = self._settings
        if settings.ssl_client_auth == "none" or not principal:
            return Level.NOTHING
        return Level.OPERATE if principal.removeprefix("User:") in settings.operators else Level.READ

    def _identity(self, authorization: str, realm: Realm) -> _Identity:
        """Return the owner of the token in a header."""
        found = _Identity(Level.NOTHING)
        token_bytes = _given_token(authorization, realm)
        if not token_bytes:
            return found
        given = sha256(token_bytes).digest()
        of_schemas = Level.OPERATE if realm is Realm.REGISTRY else Level.NOTHING
        of_tables = Level.READ if realm is Realm.TABLES else Level.NOTHING
        for name, level in zip(TOKENS, (Level.READ, Level.OPERATE, of_schemas, of_tables), strict=True):
            try:
                tokens = self._tokens(name)
            except AccessError as error:
                if self._unreadable.get(name) != str(error):
                    self._unreadable[name] = str(error)
                    _log.error("tokens of the admin port cannot be read, and are not accepted", reason=str(error))
                continue
            self._unreadable.pop(name, None)
            for token, user in tokens:
                if hmac.compare_digest(sha256(token.encode()).digest(), given) and level > found.level:
                    found = _Identity(level, name.removesuffix("_token"), user)
        return found

    def _tokens(self, name: str) -> Iterable[Token]:
        secret: Secret | None = getattr(self._settings, name)
        path: Path | None = getattr(self._settings, f"{name}_file")
        if secret is not None:
            return [Token(secret.reveal())]
        lines = [] if path is None else read_tokens(f"admin.{name}_file", path)
        return [token_with_user(line) if name == "tables_token" else Token(line) for line in lines]


def open_access(settings: Settings, bound: socket.socket, now_ms: Callable[[], int]) -> AdminAccess:
    """Read certificates and tokens, for the port of a bound socket.

    Raises OSError if they cannot be used, and MissingExtra.
    """
    admin = settings.admin
    tls = None
    if admin.ssl is not None:
        with needed("TLS"):
            from anabranch.broker.node.net.tls import Tls
        tls = Tls(admin.ssl, now_ms)
    announced = (each.advertised_host for each in settings.listeners)
    names = (*announced, settings.cluster.internal_advertised_host, admin.host, socket.gethostname())
    return AdminAccess(admin, is_local=is_loopback(bound.getsockname()[0]), names=names, tls=tls)


def _given_token(authorization: str, realm: Realm) -> bytes:
    """Return the token of a header; empty: there is none."""
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip().encode(errors="surrogateescape")
    if realm is not Realm.PORT and authorization[: len(_BASIC)].lower() == _BASIC:
        try:
            return b64decode(authorization[len(_BASIC) :], validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _plain(name: str) -> str:
    """Return the one spelling of a name that is compared."""
    return name.strip().lower().rstrip(".")
