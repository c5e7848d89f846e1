"""Fine-tuning the encoder on partial labels.

The loss is binary cross-entropy over the known categories of a row, plus the same of its verdict
("unsafe") with the soft maximum over the categories: a row that is only known to be harmful pulls
up the category that fits best. The early exits learn the verdict too.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from safety_svc.classifier.encoder import CONTENT_TOKEN_COUNT, framed
from safety_svc.classifier.labels import CATEGORIES, COUNT
from safety_svc.classifier.normalise import plain
from safety_svc.train.encoder_net import Encoder, Judged
from safety_svc.train.row import Row

# Tokens of one batch, padding included: long rows come in small batches.
BATCH_TOKEN_COUNT = 4_096
WARM_UP_SHARE = 0.06
WEIGHT_DECAY, GRADIENT_NORM_MAX = 0.01, 1.0
# Of each exit; what it pulls at the first layers, the last one pays for.
VERDICT_WEIGHT, EXIT_WEIGHT = 1.0, 0.2
CHECKPOINT_INTERVAL_S = 120.0

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as arrays.

    Attributes:
        ids: token ids of each row, see `framed`, at most one window.
        segments: 1 for documents, shape [rows].
        labels: 0, 1 or -1 for unknown, shape [rows, COUNT]; the last column is the verdict.
        weights: shape [rows].
    """

    ids: list[list[int]]
    segments: NDArray[np.int64]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32]


def encode(rows: Sequence[Row], tokenizer: Tokenizer) -> Encoded:
    """Rows as arrays; a text longer than a window is cut."""
    texts = [plain(row.text) for row in rows]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    labels = np.full((len(rows), COUNT + 1), -1, np.float32)
    for index, row in enumerate(rows):
        for column, category in enumerate(CATEGORIES):
            if category in row.labels:
                labels[index, column] = row.labels[category]
        if row.unsafe is not None:
            labels[index, COUNT] = row.unsafe
    return Encoded(
        ids=[framed(one.ids[:CONTENT_TOKEN_COUNT]) for one in encodings],
        segments=np.array([row.document for row in rows], np.int64),
        labels=labels,
        weights=np.array([row.weight for row in rows], np.float32),
    )


def loss_of(judged: Judged, labels: Tensor, weights: Tensor) -> Tensor:
    """Mean loss of a batch: labels [batch, COUNT + 1], weights [batch]."""
    logits = judged.logits.float()
    known = labels >= 0
    targets = labels.clamp(min=0)
    # Positives are rare: each counts as three.
    categories = _losses(logits, targets[:, :COUNT]) * known[:, :COUNT]
    pooled = (logits * logits.softmax(-1)).sum(-1)
    verdict = functional.binary_cross_entropy_with_logits(
        pooled, targets[:, COUNT], reduction="none"
    )
    verdict = verdict * known[:, COUNT]
    harmful = targets.amax(-1)
    sure = known[:, COUNT] | (harmful > 0)
    doubts = _losses(judged.doubts.float(), harmful[:, None].expand_as(judged.doubts)).sum(-1)
    per_row = categories.sum(-1) / 4 + VERDICT_WEIGHT * verdict + EXIT_WEIGHT * doubts * sure
    return (per_row * weights).sum() / weights.sum()


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return losses * (1 + 2 * targets)


def fit(
    net: Encoder,
    rows: Encoded,
    *,
    epochs: float,
    rate: float,
    seed: int,
    state: Path,
    log: Log,
) -> None:
    """Trains `net`; goes on from the file `state` when an earlier run left it.

    Args:
        net: changed in place.
        rows: what it learns from.
        epochs: times it sees them, parts of a time too.
        rate: highest learning rate.
        seed: of the order of the rows.
        state: where the run stands, every two minutes.
        log: gets a line now and then.
    """
    # The embeddings of words hold what was learned from far more text than ours: they stay.
    net.words.weight.requires_grad_(False)
    learned = [one for one in net.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        learned, lr=rate, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98), fused=True
    )
    whole = [_batches(rows.ids, seed + epoch) for epoch in range(math.ceil(epochs))]
    batches = list(itertools.chain.from_iterable(whole))
    batches = batches[: int(len(batches) * epochs / len(whole))]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _schedule(len(batches)))
    step = _resumed(state, net, optimizer, schedule)
    began = saved = time.monotonic()
    mean = 0.0
    net.train()
    while step < len(batches):
        loss = _step(net, optimizer, rows, batches[step])
        schedule.step()
        step += 1
        mean = loss if mean == 0 else 0.98 * mean + 0.02 * loss
        if step % 10 == 0:
            log(f"step {step}/{len(batches)} loss {mean:.4f} {time.monotonic() - began:.0f}s")
        if time.monotonic() - saved > CHECKPOINT_INTERVAL_S:
            _save(state, net, optimizer, schedule, step)
            saved = time.monotonic()
    net.eval()
    state.unlink(missing_ok=True)


def _step(
    net: Encoder,
    optimizer: torch.optim.Optimizer,
    rows: Encoded,
    batch: list[int],
) -> float:
    device = next(net.parameters()).device
    ids, segments = _texts(rows, batch, device)
    labels = torch.from_numpy(rows.labels[batch]).to(device)
    weights = torch.from_numpy(rows.weights[batch]).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        judged = net(ids, segments)
    loss = loss_of(judged, labels, weights)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(net.parameters(), GRADIENT_NORM_MAX)
    optimizer.step()
    return float(loss.detach())


def _texts(rows: Encoded, batch: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    ids = _padded([rows.ids[i] for i in batch]).to(device)
    return ids, torch.from_numpy(rows.segments[batch]).to(device)


def _padded(ids: list[list[int]]) -> Tensor:
    width = max(map(len, ids))
    return torch.tensor([one + [0] * (width - len(one)) for one in ids])


def _batches(ids: list[list[int]], seed: int) -> Iterator[list[int]]:
    """Batches of rows of like length, in random order."""
    rng = random.Random(seed)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]) + rng.random() * 6)
    batches: list[list[int]] = []
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(ids[index]) > BATCH_TOKEN_COUNT:
            batches.append(batch)
            batch = []
        batch.append(index)
    batches.append(batch)
    rng.shuffle(batches)
    return iter(batches)


def _schedule(count: int) -> Callable[[int], float]:
    """Linear warm-up, then a half cosine to a twentieth."""
    warm = max(1, int(count * WARM_UP_SHARE))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, count - warm)))

    return factor


def _save(state: Path, net: Encoder, optimizer: object, schedule: object, step: int) -> None:
    new = state.with_suffix(".new")
    parts = {"net": net, "optimizer": optimizer, "schedule": schedule}
    torch.save({"step": step} | {k: v.state_dict() for k, v in parts.items()}, new)  # type: ignore[attr-defined]
    new.replace(state)


def _resumed(state: Path, net: Encoder, optimizer: object, schedule: object) -> int:
    if not state.exists():
        return 0
    saved = torch.load(state, weights_only=True)
    for name, part in {"net": net, "optimizer": optimizer, "schedule": schedule}.items():
        part.load_state_dict(saved[name])  # type: ignore[attr-defined]
    return int(saved["step"])
