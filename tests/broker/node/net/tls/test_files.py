"""Files of TLS: what is wrong with them is one line, and changed files are read when they have settled."""

import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from structlog.testing import capture_logs

from anabranch.broker.cluster.membership.environment import wall_ms
from anabranch.broker.node.net.principals import NoMatchingRule
from anabranch.broker.node.net.tls import Tls, TlsError, load
from anabranch.broker.node.settings.ssl_area import SslSettings
from tests.support.certificates import Authority
from tests.support.node import NodeProcess

DAY_MS = 86_400_000


def area(**values: object) -> SslSettings:
    return SslSettings.of(values)


def missing(authority: Authority) -> SslSettings:
    return area(certificate_file=authority.folder / "none.pem")


def no_certificate(authority: Authority) -> SslSettings:
    issued = authority.issue("node")
    return area(certificate_file=issued.key, key_file=issued.key)


def no_key(authority: Authority) -> SslSettings:
    return area(certificate_file=authority.issue("node").certificate)


def key_of_another(authority: Authority) -> SslSettings:
    return area(certificate_file=authority.issue("node").certificate, key_file=authority.issue("other").key)


def locked(authority: Authority) -> SslSettings:
    return area(certificate_file=authority.issue("node", password="right").both)


def wrong_password(authority: Authority) -> SslSettings:
    issued = authority.issue("node", password="right")
    return area(certificate_file=issued.certificate, key_file=issued.key, key_password="wrong")


def no_password_file(authority: Authority) -> SslSettings:
    issued = authority.issue("node", password="right")
    return area(certificate_file=issued.both, key_password_file=authority.folder / "none")


def of_an_unknown_version(authority: Authority) -> SslSettings:
    issued = authority.issue("node")
    encoded = issued.parsed.public_bytes(Encoding.DER)
    version_3, version_8 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"
    assert version_3 in encoded
    issued.certificate.write_text(ssl.DER_cert_to_PEM_cert(encoded.replace(version_3, version_8, 1)))
    return area(certificate_file=issued.certificate, key_file=issued.key)


def expired(authority: Authority) -> SslSettings:
    return area(certificate_file=authority.issue("node", days=(-9, -1)).both)


def not_yet_valid(authority: Authority) -> SslSettings:
    return area(certificate_file=authority.issue("node", days=(1, 9)).both)


def with_clients(authority: Authority, **values: object) -> SslSettings:
    files = {"certificate_file": authority.issue("node").both, "ca_file": authority.file, "client_auth": "required"}
    return area(**{**files, **values})


def no_authority(authority: Authority) -> SslSettings:
    return with_clients(authority, ca_file=authority.issue("node").key)


def no_list(authority: Authority) -> SslSettings:
    return with_clients(authority, crl_file=authority.file)


def broken_list(authority: Authority) -> SslSettings:
    path = authority.revoke()
    path.write_text("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    return with_clients(authority, crl_file=path)


def old_list(authority: Authority) -> SslSettings:
    return with_clients(authority, crl_file=authority.revoke(days=(-5, -1)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (missing, "setting ssl.certificate_file: {ca}/none.pem: No such file or directory"),
        (
            no_certificate,
            "setting ssl.certificate_file: {ca}/node.key: there is no valid certificate in PEM format in this file",
        ),
        (no_key, "setting ssl.certificate_file: {ca}/node.pem: there is no valid private key in PEM format in"),
        (
            key_of_another,
            (
                "setting ssl.key_file: {ca}/other.key: the private key does not belong to the first certificate of "
                "{ca}/node.pem ('CN=node')"
            ),
        ),
        (
            locked,
            (
                "setting ssl.certificate_file: {ca}/node.both.pem: the private key is encrypted: set "
                "ssl.key_password_file, or the environment variable ANABRANCH_SSL_KEY_PASSWORD"
            ),
        ),
        (wrong_password, "setting ssl.key_file: {ca}/node.key: the password does not open the private key"),
        (no_password_file, "setting ssl.key_password_file: {ca}/none: No such file or directory"),
        (of_an_unknown_version, "a file of the settings in [ssl] has content that is not supported: 7 is not a valid"),
        (expired, "setting ssl.certificate_file: {ca}/node.both.pem: the certificate of 'CN=node' expired at 20"),
        (not_yet_valid, "setting ssl.certificate_file: {ca}/node.both.pem: the certificate of 'CN=node' is not valid"),
        (no_authority, "setting ssl.ca_file: {ca}/node.key: there is no valid certificate in PEM format in this file"),
        (no_list, "setting ssl.crl_file: {ca}/ca.pem: there is no revocation list in PEM format in this file"),
        (broken_list, "setting ssl.crl_file: {ca}/crl.pem: a revocation list is invalid: "),
        (old_list, "setting ssl.crl_file: {ca}/crl.pem: the revocation list of 'CN=ca' was to be replaced by 20"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    authority: Authority, settings: Callable[[Authority], SslSettings], expected: str
) -> None:
    with pytest.raises(TlsError) as raised:
        load(settings(authority), wall_ms())
    assert str(raised.value).startswith(expected.format(ca=authority.folder))
    assert str(raised.value).isprintable()
    assert "right" not in str(raised.value)


def test_a_rule_that_is_invalid_is_named(authority: Authority) -> None:
    with pytest.raises(TlsError, match=r"setting ssl.principal_mapping_rules: expected DEFAULT or RULE:.* found 'X'"):
        Tls(with_clients(authority, principal_mapping_rules="X"), wall_ms)


@pytest.mark.parametrize("how", ["file", "value", "not needed"])
def test_a_key_is_opened_with_its_password(authority: Authority, tmp_path: Path, how: str) -> None:
    issued = authority.issue("node", password="" if how == "not needed" else "p\u00e4ss word")
    file = tmp_path / "password"
    file.write_text("p\u00e4ss word\nand more\n")
    password = {"key_password": "p\u00e4ss word"} if how == "value" else {"key_password_file": file}
    found = load(area(certificate_file=issued.certificate, key_file=issued.key, **password), wall_ms())
    assert found.subject == "CN=node"
    assert abs(found.expires_ms - wall_ms() - 20 * DAY_MS) < DAY_MS


def test_files_are_read_when_two_checks_find_the_same_change(authority: Authority) -> None:
    issued = authority.issue("node")
    tls = Tls(area(certificate_file=issued.certificate, key_file=issued.key), wall_ms)
    before = tls.files
    tls.check()
    newer = authority.issue("newer")
    shutil.copy(newer.certificate, issued.certificate)
    tls.check()
    shutil.copy(newer.key, issued.key)
    tls.check()
    assert tls.files is before, "the key was not there at the check before"
    tls.check()
    assert (tls.files.subject, tls.reloads, tls.reload_failures) == ("CN=newer", 1, 0)
    tls.check()
    assert tls.reloads == 1


def test_files_that_cannot_be_used_are_told_once_and_those_of_before_remain(authority: Authority) -> None:
    issued = authority.issue("node")
    tls = Tls(area(certificate_file=issued.both), wall_ms)
    before = tls.files
    with capture_logs() as logs:
        issued.both.unlink()
        for _ in range(4):
            tls.check()
    (line,) = logs
    assert line["reason"] == f"setting ssl.certificate_file: {issued.both}: No such file or directory"
    assert tls.files is before
    assert (tls.reloads, tls.reload_failures) == (0, 1)
    authority.issue("back", file_name="node")
    tls.check()
    tls.check()
    assert tls.files.subject == "CN=back"


def test_a_node_refuses_to_start_with_one_line(tmp_path: Path, authority: Authority) -> None:
    issued = authority.issue("node", days=(-9, -1))
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl_certificate_file": issued.both}
    refused = NodeProcess(tmp_path, **settings).refusal()
    assert refused.startswith(f"Error: setting ssl.certificate_file: {issued.both}: the certificate of 'CN=node'")
    assert not (tmp_path / "data" / "wal").exists()


def test_a_client_certificate_that_cannot_be_read_has_no_principal(authority: Authority) -> None:
    tls = Tls(with_clients(authority), wall_ms)
    shown = cast("ssl.SSLObject", SimpleNamespace(getpeercert=lambda *, binary_form: b"\x30\x03\x02\x01\x01"))
    with pytest.raises(NoMatchingRule, match="the name of the client's certificate cannot be read: "):
        tls.principal_of(shown)
