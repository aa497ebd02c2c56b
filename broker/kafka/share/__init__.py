"""Share groups (KIP-932): the durable state of share partitions, and the partitions themselves."""
