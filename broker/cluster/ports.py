"""Ports of a node: where clients, other nodes and operators connect."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.broker_table import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX
from anabranch.broker.kafka.quotas.addresses import AddressQuotas
from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.node.net.server import Server

if TYPE_CHECKING:
    from anabranch.broker.node.net.tls import Tls


@dataclass(slots=True, kw_only=True, eq=False)
class Ports:
    """Servers for clients and for other nodes, with what is checked before a request; addresses of the admin port."""

    clients: Server
    """The listeners."""
    clients_tls: "Tls | None"
    """Certificates of the listeners with TLS; None: there is no such listener."""
    client_quotas: ClientQuotas
    address_quotas: AddressQuotas
    nodes: Server
    """The internal port, for other nodes."""
    nodes_tls: "Tls | None"
    """Certificates between nodes; None: neither the internal port nor connections to others use TLS."""
    admin_address: str = ""
    """`host:port` of the admin port; empty while it does not listen."""
    console_url: str = ""
    """Address of the web console; empty while the admin port does not listen."""

    def limit_connections(self, configs: BrokerConfigs) -> None:
        """Apply the limits of clients' connections in the broker configs, now and after each change of them."""

        def limit() -> None:
            self.clients.connections_max = configs.number(CONNECTIONS_MAX)
            self.clients.connections_per_address_max = configs.number(CONNECTIONS_PER_ADDRESS_MAX)

        limit()
        configs.watch(limit)
