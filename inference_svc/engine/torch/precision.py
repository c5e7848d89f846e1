"""Names what, besides the request and the weights, decides each bit of the logits and each draw.

    int8/int8 kernels-avx512 5f0c31a2b9
    weights / KV cache, code that computes, digest of all else

Two nodes of the same name and the same weights draw the same tokens. The reverse is not promised:
the digest also changes with what only might change a bit, such as a comment in the sampler.
"""

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

from inference_svc.engine.torch.backend import Backend
from inference_svc.engine.torch.machine import library_facts
from inference_svc.engine.torch.models.config import read_config
from inference_svc.model_folder import ModelFolder

_HERE = Path(__file__).parent
# From logits to tokens, and from a checkpoint to numbers. The kernels name their own sources.
_SOURCES = ("sampler.py", "race.py", "penalties.py", "constrained.py", "models/*.py", "eager/*.py")
_DIGEST_BYTES = 5


def precision_of(backend: Backend, model: ModelFolder) -> str:
    """The name; see above."""
    facts = (
        *backend.arithmetic_facts,
        library_facts(),
        version("llguidance"),  # which tokens a response format allows
        _source_digest(),
        repr(read_config(model.config)),
        repr(sorted(model.eos_token_ids)),
    )
    digest = hashlib.blake2b("\0".join(facts).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    weights, kv = backend.kinds
    return f"{weights}/{kv} {backend.arithmetic} {digest}"


@functools.cache
def _source_digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for pattern in _SOURCES for path in _HERE.glob(pattern)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
