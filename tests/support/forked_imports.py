"""Imports of a node: the process that `tests.support.forked` copies does them first."""

import gc

import anabranch.broker.app
import anabranch.broker.operator.cli.serve
import anabranch.s3stream.store.s3  # noqa: F401

gc.freeze()  # a collection in a copy would write to the pages that it shares
