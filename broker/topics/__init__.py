"""Topics of the cluster: loading, creation, growth, deletion, and moves between clusters."""
