"""Traces of records on their way through the node, by OpenTelemetry.

`start` decides at the start whether there is a tracer. Only `tracer` and `export` import OpenTelemetry, and nothing
imports them while tracing is off.
"""
