"""Client quotas: what is set for whom, how much each client uses, and for how long it is throttled."""
