"""Training the first stage: logistic regression over hashed n-grams, on verdicts."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from safety_svc.classifier.features import BUCKETS, features
from safety_svc.classifier.linear import Linear
from safety_svc.classifier.normalise import plain
from safety_svc.train.row import Row

BATCH_ROW_COUNT, RATE = 256, 0.02
# Features left out at random, so that no single one decides.
FEATURE_DROPOUT = 0.2
POSITIVE_WEIGHT = 3.0


def featured(rows: Sequence[Row]) -> list[NDArray[np.int64]]:
    """The buckets of every row."""
    return [features(plain(row.text)) for row in rows]


def fit(
    found: Sequence[NDArray[np.int64]],
    harmful: NDArray[np.float32],
    weights: NDArray[np.float32],
    *,
    epochs: int,
    seed: int,
) -> Linear:
    """Trains on rows with `found` buckets; verdicts `harmful` are 0 or 1, shape [rows]."""
    generator = torch.Generator().manual_seed(seed)
    table = nn.EmbeddingBag(BUCKETS, 1, mode="sum")
    nn.init.zeros_(table.weight)
    bias = nn.Parameter(torch.tensor(-2.0))
    optimizer = torch.optim.Adam([*table.parameters(), bias], lr=RATE)
    step_count = epochs * (len(found) // BATCH_ROW_COUNT + 1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, step_count)
    for _ in range(epochs):
        order = torch.randperm(len(found), generator=generator).tolist()
        for start in range(0, len(order), BATCH_ROW_COUNT):
            batch = order[start : start + BATCH_ROW_COUNT]
            logits = _forward(table, bias, [found[i] for i in batch], generator)
            targets = torch.from_numpy(harmful[batch])
            loss = functional.binary_cross_entropy_with_logits(
                logits,
                targets,
                weight=torch.from_numpy(weights[batch]) * (1 + (POSITIVE_WEIGHT - 1) * targets),
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return quantised(table.weight.detach().numpy()[:, 0], bias.item())


def quantised(weights: NDArray[np.float32], bias: float) -> Linear:
    """Weights in 8 bits; the largest few are cut, so that the many small ones keep their steps."""
    scale = max(float(np.quantile(np.abs(weights), 0.9995)), 1e-6) / 127
    rounded = np.clip(np.rint(weights / scale), -127, 127).astype(np.int8)
    return Linear(rounded, scale, bias)


def _forward(
    table: nn.EmbeddingBag,
    bias: torch.Tensor,
    rows: Sequence[NDArray[np.int64]],
    generator: torch.Generator,
) -> torch.Tensor:
    sizes = torch.tensor([len(row) for row in rows])
    joined = torch.from_numpy(np.concatenate(rows))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]])
    kept = (torch.rand(len(joined), generator=generator) >= FEATURE_DROPOUT).float()
    sums = table(joined, offsets, per_sample_weights=kept / (1 - FEATURE_DROPOUT))[:, 0]
    return sums * sizes.clamp(min=1).float().rsqrt() + bias  # type: ignore[no-any-return]
