"""The transaction coordinator: state machine of a transactional id, shards of `__transaction_state`, markers."""
