"""The share protocol (KIP-932): members of a group share partitions, and records are delivered one by one."""
