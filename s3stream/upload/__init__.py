"""The upload path: sealed blocks of the log cache become objects, in order, and the WAL is trimmed behind them."""
