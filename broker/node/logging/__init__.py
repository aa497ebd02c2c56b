"""The log of a node: structured lines on standard error, levels that change at run time, stack dumps."""
