"""Replaces newer error codes of the transaction coordinator for clients that do not know them."""

from anabranch.protocol.errors import ErrorCode


def code_for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Return the code for a request version: PRODUCER_FENCED (KIP-588) is INVALID_PRODUCER_EPOCH for old clients."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def code_for_writer(code: ErrorCode, *, knows_abortable: bool, retry: ErrorCode) -> ErrorCode:
    """Return the code for a client that writes to a transaction. `retry` is the code at which it tries again.

    As in Kafka, a fenced producer gets INVALID_PRODUCER_EPOCH. One that has not added the partition gets
    TRANSACTION_ABORTABLE if it knows that code (KIP-890), else INVALID_TXN_STATE.
    """
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS | ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.NOT_COORDINATOR:
            return retry
    return code
