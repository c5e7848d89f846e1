"""What may be changed of a conversation, whichever face it came in by. Pure."""

from gateway.errors import bad_parameter
from gateway.upstreams.conversation import Changes

TITLE_LENGTH_MAX = 200


def checked_changes(changes: Changes) -> Changes:
    """The changes, when they are any.

    Raises:
        MeshError: INVALID_PARAMETER: a title that is empty or too long, or nothing to change.
    """
    if changes == Changes():
        raise bad_parameter("title", "Nothing is to change: give title, background or both.")
    if changes.title is not None and not 1 <= len(changes.title) <= TITLE_LENGTH_MAX:
        raise bad_parameter("title", f"title must have 1 to {TITLE_LENGTH_MAX} characters.")
    return changes
