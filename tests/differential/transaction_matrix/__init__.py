"""Every request of a transaction, in each version, at every moment of the transaction before it.

`matrix` has the moments and the requests. `answers.txt` has what Apache Kafka answers: `python -m
tests.differential.transaction_matrix.record` writes it. The test asks nodes over logs in memory, where a moment lasts
for as long as it is needed.
"""
