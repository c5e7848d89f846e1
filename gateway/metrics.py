"""What the gateway counts; names carry the unit."""

from prometheus_client import Counter, Gauge, Histogram

FIRST_TEXT_SECONDS = Histogram(
    "chatmesh_gateway_first_text_seconds",
    "From the arrival of a request to its first released text",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
TURNS = Counter("chatmesh_gateway_turns", "Turns by how they ended", ["outcome"])
TOKENS = Counter("chatmesh_gateway_tokens", "Tokens of turns", ["kind"])
CANCEL_SECONDS = Histogram(
    "chatmesh_gateway_cancel_seconds",
    "From the departure of a client to the cancelled generation",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
CONTINUATIONS = Counter(
    "chatmesh_gateway_continuations", "Answers that went on at another node", ["reason"]
)
CONCLUSIONS_LOST = Counter(
    "chatmesh_gateway_conclusions_lost", "Turns whose end could not be recorded in time", ["what"]
)
OPERATOR_PROMPTS_READS = Counter(
    "chatmesh_gateway_operator_prompts_reads", "Changes of the operator's prompts", ["outcome"]
)
ADMISSIONS = Counter("chatmesh_gateway_admissions", "Admission decisions", ["outcome"])
UNKNOWN_KEYS_REFUSED = Counter(
    "chatmesh_gateway_unknown_keys_refused", "API keys that were not looked up: too many unknown"
)
QUEUE_WAITING = Gauge("chatmesh_gateway_queue_waiting", "Turns that wait to be planned")
QUEUE_SECONDS = Histogram(
    "chatmesh_gateway_queue_seconds",
    "Wait of turns that had to wait to be planned",
    ["tier"],
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10),
)
QUEUE_REFUSALS = Counter(
    "chatmesh_gateway_queue_refusals", "Turns refused because they would wait too long", ["tier"]
)
SCREENINGS_STALLED = Counter(
    "chatmesh_gateway_screenings_stalled", "Whole answers of which safety said nothing in time"
)
JOURNAL_FAILURES = Counter(
    "chatmesh_gateway_journal_failures", "Writes of the journal that had no answer in time"
)
TURNS_LOST = Counter(
    "chatmesh_gateway_turns_superseded", "Turns that another gateway had adopted meanwhile"
)
TURNS_ADOPTED = Counter(
    "chatmesh_gateway_turns_adopted", "Turns taken over from a gateway that is no more"
)
TURNS_STUCK = Counter(
    "chatmesh_gateway_turns_stuck", "Turns that the watchdog ended: a fault of ours"
)
TURNS_RUNNING = Gauge("chatmesh_gateway_turns_running", "Turns that this gateway owns")
