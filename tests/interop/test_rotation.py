"""A new authority for nodes and clients, as docs/security.md replaces the old one: each step serves whom it must."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from anabranch.broker.operator.cli.topic import topic
from tests.support.certificates import Authority, Issued
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.interop


def test_an_authority_is_replaced_while_the_node_serves(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    trusted, certificate, both = (tmp_path / name for name in ("ca.pem", "node.pem", "both.pem"))
    trusted.write_bytes(old.file.read_bytes())
    certificate.write_bytes(old.issue("node").both.read_bytes())
    both.write_bytes(old.file.read_bytes() + new.file.read_bytes())
    old_client, new_client = old.issue("client"), new.issue("client")
    node = NodeProcess(
        tmp_path,
        listeners="SSL://127.0.0.1:0",
        ssl_certificate_file=certificate,
        ssl_ca_file=trusted,
        ssl_client_auth="required",
    )

    def serves(client: Issued, authorities: Path) -> bool:
        properties = {
            "bootstrap.servers": node.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authorities),
            "ssl.keystore.location": str(client.both),
        }
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return CliRunner().invoke(topic, ["list", "--command-config", str(file)]).exit_code == 0

    with node as process:
        assert serves(old_client, old.file)
        assert not serves(new_client, both)
        # Clients and nodes trust both.
        trusted.write_bytes(both.read_bytes())
        wait_until(lambda: serves(new_client, both), "the node trusts the new authority")
        assert serves(old_client, both)
        # All certificates are renewed.
        certificate.write_bytes(new.issue("node").both.read_bytes())
        wait_until(lambda: serves(new_client, new.file), "the node shows its new certificate")
        assert serves(old_client, both)
        # The old one is taken out.
        trusted.write_bytes(new.file.read_bytes())
        wait_until(lambda: not serves(old_client, both), "the node does not trust the old authority")
        assert serves(new_client, new.file)
        assert process.terminate() == 0
