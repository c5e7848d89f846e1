"""What of this machine the last bits of floating-point results depend on."""

import functools
import json
import platform
from pathlib import Path

import numpy as np

_CPU_FILE = Path("/proc/cpuinfo")
# Fields of the first processor, on x86 and on ARM.
MAKER = frozenset({"vendor_id", "CPU implementer"})
MODEL = frozenset({"cpu family", "model", "model name", "CPU architecture", "CPU part"})


def cpu_facts(*fields: frozenset[str]) -> str:
    """These fields of the CPU, and the architecture."""
    wanted = frozenset().union(*fields)
    return " ".join([platform.machine(), *parsed(_cpu_text(), wanted)])


def parsed(cpu_text: str, wanted: frozenset[str]) -> list[str]:
    """The values of the wanted fields of the first processor, in the order of the file."""
    first, _, _ = cpu_text.partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return [value.strip() for name, _, value in pairs if name.strip() in wanted]


@functools.cache
def _cpu_text() -> str:
    try:
        return _CPU_FILE.read_text()
    except OSError:  # not Linux
        return f"vendor_id: {platform.processor()}"


@functools.cache
def library_facts() -> str:
    """numpy, which code of each function it chose for this CPU, and the C library under it."""
    chosen = json.dumps(np.lib.introspect.opt_func_info(), sort_keys=True)
    return f"{np.__version__} {chosen} {' '.join(platform.libc_ver())} {cpu_facts(MAKER)}"
