"""Usage events on the wire and as reports of the domain."""

import re

from google.protobuf.message import DecodeError

from billing_svc.ledger import CHOICE_COUNT_MAX, POSITION_MAX, Kind, Usage
from billing_svc.ledger_store import Report
from billing_svc.turn import STEP_COUNT_MAX
from chatmesh.billing.v1 import billing_pb2

ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class BadEventError(Exception):
    """The event can never be charged; `field` names what is wrong with it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def report_of(event: billing_pb2.UsageEvent) -> Report:
    """The checked report. Raises BadEventError."""
    if not ULID.fullmatch(event.turn_id):
        raise BadEventError("turn_id", "must be a ULID")
    if event.kind not in (1, 2, 3):
        raise BadEventError("kind", "must be INPUT, CACHED_INPUT or OUTPUT")
    if event.step >= STEP_COUNT_MAX:
        raise BadEventError("step", f"must be below {STEP_COUNT_MAX}")
    if event.choice_index >= CHOICE_COUNT_MAX:
        raise BadEventError("choice_index", f"must be below {CHOICE_COUNT_MAX}")
    if not event.first_position < event.end_position <= POSITION_MAX:
        raise BadEventError("end_position", "must be above first_position and below 2^31")
    usage = Usage(
        event.turn_id,
        event.choice_index,
        Kind(event.kind),
        event.first_position,
        event.end_position,
        event.step,
    )
    return Report(usage, event.SerializeToString())


def parse(data: bytes) -> tuple[Report, float]:
    """The report in a serialised event, and when it happened (seconds since the epoch; 0: unsaid).

    Raises:
        BadEventError: not an event, or not one that can be charged.
    """
    event = billing_pb2.UsageEvent()
    try:
        event.ParseFromString(data)
    except DecodeError as error:
        raise BadEventError("event", "is not a UsageEvent") from error
    return report_of(event), event.event_time.ToNanoseconds() / 1e9
