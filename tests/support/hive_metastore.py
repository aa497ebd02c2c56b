"""Hive's metastore over a Derby database, at a free port of loopback, in a Java process of its own.

Spark brings its classes. Hive 2.3's own main program would listen on all addresses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.support.java_process import SPARK_JARS, java_process


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Start the metastore with its database and tables in `folder`, yield its address, stop it at the end."""
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'metastore'};create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "datanucleus.connectionPoolingType": "none",  # the pool that is the default is not among the classes
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
    }
    with java_process([f"{SPARK_JARS}/*"], f"-Dderby.stream.error.file={folder / 'derby.log'}") as gateway:
        java, hive = gateway.jvm, gateway.jvm.org.apache.hadoop.hive
        conf = hive.conf.HiveConf()
        for name, value in settings.items():
            conf.set(name, value)
        hive.metastore.txn.TxnDbUtil.prepDb(conf)
        handler = hive.metastore.HiveMetaStore.newRetryingHMSHandler("anabranch", conf, True)
        thrift = java.org.apache.thrift
        socket = thrift.transport.TServerSocket(java.java.net.InetSocketAddress("127.0.0.1", 0))
        arguments = thrift.server.TThreadPoolServer.Args(socket)
        arguments = arguments.processor(hive.metastore.TSetIpAddressProcessor(handler))
        arguments = arguments.stopTimeoutVal(0)  # by default it waits a minute for Spark's connection
        server = thrift.server.TThreadPoolServer(arguments)
        serving = Thread(target=server.serve, name="hive-metastore")
        serving.start()
        try:
            yield f"thrift://127.0.0.1:{socket.getServerSocket().getLocalPort()}"
        finally:
            server.stop()
            serving.join()
