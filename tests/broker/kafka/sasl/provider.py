"""An identity provider: keys, tokens, and a key set in a file or on a web server."""

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

NOW_S = 1_700_000_000
ISSUER, AUDIENCE = "https://provider.example", "kafka"
Key = RSAKey | ECKey | OKPKey | OctKey


@cache
def rsa_key(kid: str = "rsa", bits: int = 2048) -> RSAKey:
    return RSAKey.generate_key(bits, {"kid": kid})


@cache
def ec_key(kid: str = "ec") -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid})


@cache
def okp_key(kid: str = "okp") -> OKPKey:
    return OKPKey.generate_key("Ed25519", {"kid": kid})


def claims(now_s: int = NOW_S, **changed: Any) -> dict[str, Any]:
    """Claims of a valid token; None leaves one out."""
    made = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "iat": now_s - 10,
        "exp": now_s + 600,
        "scope": "read write",
        **changed,
    }
    return {name: value for name, value in made.items() if value is not None}


def sign(key: Key, content: dict[str, Any], alg: str = "RS256", **header: Any) -> str:
    """A token that a key has signed."""
    named = {"alg": alg, **({"kid": key.kid} if key.kid else {}), **header}
    made: str = jwt.encode({name: value for name, value in named.items() if value is not None}, content, key, [alg])
    return made


def raw_token(header: dict[str, Any], content: Any, signature: bytes = b"") -> str:
    """A token of any header and content."""
    parts = (json.dumps(header).encode(), json.dumps(content).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def message(token: str, authzid: str = "", pairs: str = "") -> bytes:
    """The message of a client."""
    return f"n,{f'a={authzid}' if authzid else ''},\x01auth=Bearer {token}\x01{pairs}\x01".encode()


def key_set(*keys: Key) -> bytes:
    """The public keys, as a set."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class Provider:
    """A web server with a key set."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.content = key_set(*keys)
        self.status = 200
        self.asked = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                self.send_response(provider.status)
                if provider.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(provider.content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/keys"


@contextmanager
def provider_of(*keys: Key) -> Iterator[Provider]:
    """A web server while the block runs."""
    provider = Provider(keys)
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()
