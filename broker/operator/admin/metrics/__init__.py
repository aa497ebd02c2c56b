"""Metrics of the node for Prometheus. Nothing is collected here: components count, and a scrape reads their counters.

`definitions` says what a metric is. `node`, `storage` and `cluster` have the metrics of their areas, `exposition`
writes them, and `documentation` lists them in docs/monitoring.md.
"""
