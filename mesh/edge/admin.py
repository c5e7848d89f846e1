"""Envoy's admin interface, as far as the agent needs it."""

import http.client
from dataclasses import dataclass
from pathlib import Path

from mesh.edge.bootstrap import ADMIN_ADDRESS_FILE
from mesh.edge.inputs import ACCESS_LOG_BYTES_MAX, ACCESS_LOG_PATH

TIMEOUT_S = 1.0
OK = 200


@dataclass(frozen=True)
class EnvoyHealth:
    """What Envoy says of itself."""

    live: bool
    # host:port by listener name; without listeners nobody is served, however live Envoy is.
    listeners: dict[str, str]

    @property
    def serving(self) -> bool:
        """Strangers are answered."""
        return self.live and bool(self.listeners)


ABSENT = EnvoyHealth(live=False, listeners={})


def health(state_dir: Path) -> EnvoyHealth:
    """Asks Envoy; `ABSENT` when it does not run or does not answer. Blocks at most 2 s."""
    try:
        address = (state_dir / ADMIN_ADDRESS_FILE).read_text().strip()
        status, body = _call(address, "GET", "/ready")
        _, listeners = _call(address, "GET", "/listeners")
    except (OSError, http.client.HTTPException):
        return ABSENT
    return EnvoyHealth(status == OK and body.strip() == "LIVE", parse_listeners(listeners))


def drain(state_dir: Path) -> bool:
    """Asks Envoy to take no more connections and to let the running streams end."""
    return _post(state_dir, "/drain_listeners?graceful")


def rotate_log(state_dir: Path, size_bytes_max: int = ACCESS_LOG_BYTES_MAX) -> bool:
    """Begins a new access log when the present one is larger; True when it did.

    Of the former one there is one. Blocks at most 1 s.

    Raises:
        OSError: the files cannot be renamed.
    """
    log = state_dir / ACCESS_LOG_PATH
    if not log.exists() or log.stat().st_size <= size_bytes_max:
        return False
    log.replace(log.with_name(f"{log.name}.1"))
    # Until then Envoy goes on writing into the former file.
    return _post(state_dir, "/reopen_logs")


def _post(state_dir: Path, path: str) -> bool:
    try:
        address = (state_dir / ADMIN_ADDRESS_FILE).read_text().strip()
        status, _ = _call(address, "POST", path)
    except (OSError, http.client.HTTPException):
        return False
    return status == OK


def parse_listeners(text: str) -> dict[str, str]:
    """Reads lines such as "edge-plain::127.0.0.1:8080"."""
    pairs = (line.partition("::") for line in text.splitlines())
    return {name: address for name, separator, address in pairs if separator}


def _call(address: str, verb: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(verb, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
