"""Topics of the cluster: look-up, creation, growth, deletion, and moves between clusters."""
