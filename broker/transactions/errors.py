"""How errors of the coordinator are told to clients that do not know them."""

from protocol.errors import ErrorCode


def code_for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED came with KIP-588; clients before know INVALID_PRODUCER_EPOCH."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def code_for_writer(code: ErrorCode, *, knows_abortable: bool, retry: ErrorCode) -> ErrorCode:
    """What a client that writes into a transaction is told; `retry` is what makes it send the same again.

    As in Kafka, a fenced writer gets INVALID_PRODUCER_EPOCH, and one that did not add the partition INVALID_TXN_STATE,
    or TRANSACTION_ABORTABLE if it knows that (KIP-890).
    """
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        case (
            ErrorCode.CONCURRENT_TRANSACTIONS
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NOT_COORDINATOR
        ):
            return retry
    return code
