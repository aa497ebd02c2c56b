"""A real identity provider: Ory Hydra over TLS on free loopback ports, with its data in PostgreSQL.

with identity_provider(postgres.new_database(), folder) as provider:
    provider.add_client("alice", scopes=["kafka"], audiences=["kafka"])
    token = provider.token("alice", scope="kafka", audience="kafka")
    provider.add_key("second")          # signs from now on
    provider.remove_key(kid_of(token))
    provider.stop()                     # and `start`, at the same address
"""

import base64
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from joserfc.jwk import RSAKey

from benchmarks.lab.processes import free_port
from tests.support.certificates import Authority
from tests.support.tools import hydra
from tests.support.waiting import wait_until

SECRET = "MARKED-SECRET-of-"
"""The secret of a client is this and its name."""
REQUEST_TIMEOUT_S = 30
STOP_TIMEOUT_S = 30


class IdentityProvider:
    """The provider. It issues JWTs to clients with their names as `sub`, for the grant of client credentials."""

    def __init__(self, database: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.authority = Authority(folder / "ca", "provider")
        certificate = self.authority.issue("localhost")
        self._context = self.authority.client_context()
        port, admin_port = free_port(), free_port()
        self._admin = f"http://127.0.0.1:{admin_port}"
        self.url = f"https://localhost:{port}"
        self.keys_url = f"{self.url}/.well-known/jwks.json"
        self.token_url = f"{self.url}/oauth2/token"
        self.tokens: list[str] = []
        """Tokens that `token` has returned."""
        self._process: subprocess.Popen[bytes] | None = None
        files = {"cert": {"path": str(certificate.certificate)}, "key": {"path": str(certificate.key)}}
        settings = {
            "dsn": f"{database}?sslmode=disable",
            "serve": {
                "public": {"host": "127.0.0.1", "port": port, "tls": {"enabled": True, **files}},
                "admin": {"host": "127.0.0.1", "port": admin_port},
            },
            "urls": {"self": {"issuer": self.url}},
            "secrets": {"system": ["the secret of a provider for tests"]},
            "strategies": {"access_token": "jwt", "jwt": {"scope_claim": "both"}},
        }
        self._settings = folder / "hydra.json"
        self._settings.write_text(json.dumps(settings))

    def create_tables(self) -> None:
        """Prepare the database."""
        with (self._folder / "hydra.log").open("ab") as log:
            subprocess.run(
                [hydra(), "migrate", "sql", "-e", "--yes", "-c", self._settings],
                env=self._environ(),
                stdout=log,
                stderr=log,
                check=True,
            )

    def _environ(self) -> dict[str, str]:
        dsn: str = json.loads(self._settings.read_text())["dsn"]
        return {**os.environ, "DSN": dsn, "SQA_OPT_OUT": "true"}  # no figures of use are sent

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self._folder / "hydra.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [hydra(), "serve", "all", "-c", self._settings], env=self._environ(), stdout=log, stderr=log
            )

        def is_ready() -> bool:
            assert process.poll() is None, f"the provider did not start: {self._folder / 'hydra.log'}"
            try:
                self._ask("GET", "/health/ready")
            except OSError:
                return False
            return True

        wait_until(is_ready, "the provider answers")

    def stop(self) -> None:
        """Stop it. Its address is free until the next start."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def add_client(
        self, name: str, *, scopes: Sequence[str], audiences: Sequence[str] = (), lifespan: str = "1h"
    ) -> None:
        """Register a client that gets tokens for these scopes and audiences, valid for so long (`1h`, `5s`)."""
        client = {
            "client_id": name,
            "client_secret": SECRET + name,
            "grant_types": ["client_credentials"],
            "scope": " ".join(scopes),
            "audience": audiences,
            "token_endpoint_auth_method": "client_secret_basic",
            "client_credentials_grant_access_token_lifespan": lifespan,
        }
        self._ask("POST", "/admin/clients", client)

    def token(self, client: str, **form: str) -> str:
        """Get a token as a client does; `form` has what it asks for: `scope`, `audience`."""
        body = urlencode({"grant_type": "client_credentials", **form}).encode()
        credentials = base64.b64encode(f"{client}:{SECRET}{client}".encode()).decode()
        request = urllib.request.Request(self.token_url, body, {"Authorization": f"Basic {credentials}"})
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=self._context) as answer:
            self.tokens.append(json.load(answer)["access_token"])
        return self.tokens[-1]

    def add_key(self, kid: str) -> None:
        """Add a key, which signs from now on. Those of before stay in the published set.

        It is made here: the provider's own have 4096 bits, and a busy machine makes none within its ten seconds for an
        answer.
        """
        key = RSAKey.generate_key(2048, {"alg": "RS256", "use": "sig", "kid": kid}, private=True)
        self._ask("PUT", f"/admin/keys/hydra.jwt.access-token/{kid}", key.as_dict(private=True))

    def remove_key(self, kid: str) -> None:
        """Take a key out of the published set."""
        self._ask("DELETE", f"/admin/keys/hydra.jwt.access-token/{kid}")

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._admin + path, content, headers, method=method)
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            answer.read()


def kid_of(token: str) -> str:
    """The key that a token names."""
    head = token.split(".", maxsplit=1)[0]
    kid: str = json.loads(base64.urlsafe_b64decode(head + "=="))["kid"]
    return kid


@contextmanager
def identity_provider(database: str, folder: Path) -> Iterator[IdentityProvider]:
    """Start a provider on an empty database of PostgreSQL; stop it at the end. Skips if it is not installed."""
    hydra()
    provider = IdentityProvider(database, folder)
    provider.create_tables()
    try:
        provider.start()
        yield provider
    finally:
        provider.stop()
