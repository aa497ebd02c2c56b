"""Topics of the cluster: look-up, creation, growth, deletion, and moves (detach, attach, clone)."""
