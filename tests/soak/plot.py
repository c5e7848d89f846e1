"""The samples as a picture (SVG): a panel for each kind, a line for each process or part."""

from collections.abc import Sequence
from pathlib import Path

from tests.soak.sample import Sample

COLUMNS = 2


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Writes the picture to `path`."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    names = sorted({name for one in samples for name in one.processes})
    parts = sorted({part for one in samples for part in one.disk_mib})
    figure, axes = pyplot.subplots(3, COLUMNS, figsize=(14, 12), layout="constrained")
    memory, descriptors, lag, on_disk, keys, total = axes.flat

    def line(panel, label, value):
        points = [(one.at_s / 60, value(one)) for one in samples]
        shown = [(at, found) for at, found in points if found is not None]
        if shown:
            panel.plot(*zip(*shown, strict=True), label=label, linewidth=1)

    for name in names:
        line(memory, name, lambda one, n=name: _of(one, n, "memory_mib"))
        line(descriptors, name, lambda one, n=name: _of(one, n, "descriptor_count"))
        line(lag, name, lambda one, n=name: _of(one, n, "lag_ms"))
    for part in parts:
        line(on_disk, part, lambda one, p=part: one.disk_mib.get(p))
    line(keys, "all", lambda one: one.redis_keys and one.redis_keys[0])
    line(keys, "without expiry", lambda one: one.redis_keys and one.redis_keys[1])
    line(total, "all memory", lambda one: sum(u.memory_mib for u in one.processes.values()))
    titles = {
        memory: "memory, MiB", descriptors: "descriptors", lag: "loop lag p99, ms",
        on_disk: "disk, MiB", keys: "Redis keys", total: "memory of all, MiB",
    }  # fmt: skip
    for panel, title in titles.items():
        panel.set_title(title)
        panel.set_xlabel("minutes")
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=6, ncols=2)
    figure.savefig(path, format="svg")
    pyplot.close(figure)


def _of(sample: Sample, name: str, attribute: str) -> float | None:
    usage = sample.processes.get(name)
    return getattr(usage, attribute) if usage else None
