"""The web console in a real browser, on real nodes."""
