"""Limits of the machine that a load of many connections would meet."""

import resource


def raise_file_limit() -> int:
    """Raises the number of open files to what the system allows; inherited by what is started."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
