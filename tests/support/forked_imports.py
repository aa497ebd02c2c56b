"""Imports of a node: the process that `tests.support.forked` copies does them first."""

import gc

import anabranch.broker.app
import anabranch.broker.kafka.sasl.oauthbearer
import anabranch.broker.node.net.tls_acceptor
import anabranch.broker.operator.admin.http
import anabranch.broker.operator.cli.serve
import anabranch.s3stream.store.s3  # noqa: F401

gc.freeze()  # a collection in a copy would write to the pages that it shares
