"""The C interface of the compiled kernels, as in cpp/api.cpp."""

import ctypes
import functools
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

from inference_svc.engine.torch.kernels.build import KERNELS, LEVELS

KINDS = {"f32": 0, "bf16": 1, "int8": 2}  # enum Kind in model.h
BUILD_COMMAND = "python -m inference_svc.engine.torch.kernels.build"
# Error codes of api.cpp.
NO_MEMORY, BAD_TOKEN, BAD_BLOCK, NEED_ROTATIONS, BAD_ROWS = 1, 2, 3, 4, 5


class ConfigStruct(ctypes.Structure):
    """`Config` of model.h."""

    _fields_ = [
        *((name, c_int32) for name in ("vocabulary", "hidden", "intermediate", "layers", "heads")),
        *((name, c_int32) for name in ("kv_heads", "head_dim", "embedding_kind", "kv_kind")),
        *((name, c_int32) for name in ("threads", "level")),
        ("norm_eps", c_float),
    ]


class StepStruct(ctypes.Structure):
    """`Step` of model.h."""

    _fields_ = [
        *((name, c_int32) for name in ("rows", "chunks", "table_width", "samples")),
        *((name, c_void_p) for name in ("token_ids", "chunk_starts", "chunk_begins")),
        *((name, c_void_p) for name in ("block_tables", "logit_rows")),
        *((name, c_void_p) for name in ("logits", "greedy", "sound")),
    ]


_SIGNATURES = {
    "cm_level": (c_int32, []),
    "cm_open": (c_void_p, [POINTER(ConfigStruct)]),
    "cm_load_matrix": (c_int32, [c_void_p, *[c_int32] * 5, *[c_void_p] * 3]),
    "cm_load_norm": (c_int32, [c_void_p, c_int32, c_int32, c_int32, c_void_p]),
    "cm_load_embedding": (c_int32, [c_void_p, c_void_p]),
    "cm_set_window": (None, [c_void_p, c_int32, c_int32]),
    "cm_set_rotations": (None, [c_void_p, c_void_p, c_void_p, c_int32]),
    "cm_block_bytes": (c_int64, [c_void_p]),
    "cm_allocate": (c_int32, [c_void_p, c_int32]),
    "cm_step": (c_int32, [c_void_p, POINTER(StepStruct)]),
    "cm_copy_block": (None, [c_void_p, c_int32, c_int32]),
    "cm_wipe_block": (None, [c_void_p, c_int32]),
    "cm_read_memory": (c_int32, [c_void_p, c_void_p, c_int64]),
    "cm_multiply": (c_int64, [c_void_p, c_int32]),
    "cm_close": (None, [c_void_p]),
}


@functools.cache
def load() -> ctypes.CDLL:
    """The library; its calls release the GIL. Raises OSError when it is not built."""
    library = ctypes.CDLL(str(KERNELS.path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def unavailable_reason() -> str:
    """Empty when the kernels can be used, else a sentence for the log."""
    path = KERNELS.path()
    if not path.exists():
        return f"The kernels are not compiled; {BUILD_COMMAND} compiles them in some seconds."
    try:
        load()
    except (OSError, AttributeError) as error:
        return f"The kernels' library does not load ({error}); delete {path.name} and run make."
    return ""


def machine_level() -> str:
    """The highest instruction-set level that was compiled and that this CPU has."""
    return LEVELS[load().cm_level()]
