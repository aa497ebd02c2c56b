"""Iceberg's own REST catalog over an SQLite file, at a free port of loopback, in a Java process of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import JavaGateway

from tests.support.java_process import SPARK_JARS, java_process
from tests.support.tools import rest_catalog as jars_folder

IN_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "commons-logging-*.jar")


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Start the catalog with its tables in `folder`, yield its address, stop it at the end. Skips if not installed."""
    jars = [str(jars_folder() / "*"), *(str(jar) for name in IN_SPARK for jar in SPARK_JARS.glob(name))]
    with java_process(jars) as gateway:
        yield _start(gateway, folder)


def _start(gateway: JavaGateway, folder: Path) -> str:
    java = gateway.jvm
    backend = java.org.apache.iceberg.jdbc.JdbcCatalog()
    backend.setConf(java.org.apache.hadoop.conf.Configuration())
    settings = {
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "warehouse": str(folder / "warehouse"),
        "jdbc.schema-version": "V1",
    }
    properties = java.java.util.HashMap()
    for name, value in settings.items():
        properties.put(name, value)
    backend.initialize("backend", properties)
    servlet = java.org.apache.iceberg.rest.RESTCatalogServlet(java.org.apache.iceberg.rest.RESTCatalogAdapter(backend))
    handler = java.org.eclipse.jetty.servlet.ServletContextHandler()
    handler.addServlet(java.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
    server = java.org.eclipse.jetty.server.Server(java.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(handler)
    server.start()
    return f"http://127.0.0.1:{server.getURI().getPort()}"
