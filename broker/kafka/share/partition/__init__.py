"""The pure state of share partitions on their leader: which records are delivered to whom, how often, until when."""
