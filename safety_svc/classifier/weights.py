"""The files of a trained classifier, checked by digest.

ValueError
└── ModelError    what is wrong with the folder, and how to mend it
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safety_svc.classifier import encoder
from safety_svc.classifier.features import BUCKET_BITS
from safety_svc.classifier.labels import CATEGORIES, COUNT
from safety_svc.classifier.linear import Linear
from safety_svc.detectors.base import Audience
from safety_svc.fast.library import FastLinear

SHIPPED = Path(__file__).with_name("weights")
MANIFEST, GRAPH, LINEAR, TOKENIZER = "manifest.json", "encoder.onnx", "linear.npz", "tokenizer.json"
FORMAT = 4


class ModelError(ValueError):
    """A folder that holds no usable classifier."""


class Gates(NamedTuple):
    """Below these scores of a stage a text is harmless; range [0, 1).

    Instructions hidden in documents look more like their surroundings than requests of people do;
    an answer is judged at every look, and is seldom harmful.
    """

    person: float = 0.0
    document: float = 0.0
    reply: float = 0.0

    def of(self, audience: Audience) -> float:
        """The one that holds for texts of `audience`."""
        if audience is Audience.REPLY:
            return self.reply
        return self.document if audience is Audience.TOOL else self.person


class Fitted(NamedTuple):
    """What is fitted to trained weights.

    Attributes:
        gates: of the first stage.
        exits: of the encoder's first layers, EXIT_COUNT.
        slopes, offsets: calibration, probability = sigmoid(slope * logit + offset), [COUNT] each.
    """

    gates: Gates = Gates()
    exits: Sequence[Gates] = (Gates(),) * encoder.EXIT_COUNT
    slopes: NDArray[np.float32] = np.ones(COUNT, np.float32)
    offsets: NDArray[np.float32] = np.zeros(COUNT, np.float32)


@dataclass(frozen=True, slots=True)
class Weights:
    """A loaded classifier.

    Attributes:
        digest: SHA-256 of the manifest, which names the digests of all other files.
    """

    digest: str
    linear: Linear
    encoder: encoder.Encoder
    fitted: Fitted


def load(folder: Path) -> Weights:
    """Reads and checks a folder; raises ModelError."""
    data = _read(folder, MANIFEST)
    try:
        manifest = json.loads(data)
        made_for = manifest["format"], manifest["bucket_bits"]
        if made_for != (FORMAT, BUCKET_BITS):
            raise ModelError(
                f"{folder} has format {made_for}, this program reads {(FORMAT, BUCKET_BITS)}: "
                "train it anew with `python -m safety_svc.train`."
            )
        files: Mapping[str, str] = manifest["files"]
        calibration = [manifest["calibration"][category] for category in CATEGORIES]
        slopes, offsets = np.array(calibration, np.float32).T
        gates, exits = Gates(**manifest["gates"]), [Gates(**one) for one in manifest["exits"]]
        fitted = Fitted(gates, exits, slopes, offsets)
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / MANIFEST} is no manifest ({error}): train it anew.") from error
    parts = {name: _checked(folder, name, files) for name in (GRAPH, LINEAR, TOKENIZER)}
    with np.load(io.BytesIO(parts[LINEAR])) as arrays:
        values = arrays["weights"]
        scale, bias = float(arrays["scale"]), float(arrays["bias"])
    linear = Linear(values, scale, bias, FastLinear.open(values))
    return Weights(
        digest=hashlib.sha256(data).hexdigest(),
        linear=linear,
        encoder=encoder.load(parts[GRAPH], parts[TOKENIZER].decode()),
        fitted=fitted,
    )


def write_manifest(folder: Path, fitted: Fitted, **about: Any) -> None:
    """Writes the manifest of the files in `folder`: their digests, what is fitted, and `about`."""
    names = (GRAPH, LINEAR, TOKENIZER)
    content = {
        "format": FORMAT,
        "bucket_bits": BUCKET_BITS,
        **about,
        "gates": _rounded(fitted.gates),
        "exits": [_rounded(one) for one in fitted.exits],
        "calibration": {
            category: [round(float(slope), 5), round(float(offset), 5)]
            for category, slope, offset in zip(
                CATEGORIES, fitted.slopes, fitted.offsets, strict=True
            )
        },
        "files": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names},
    }
    text = json.dumps(content, indent=1) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _rounded(gates: Gates) -> dict[str, float]:
    return {name: round(gate, 6) for name, gate in gates._asdict().items()}


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ModelError(
            f"{folder / name}: {error.strerror}; the folder of a classifier holds {MANIFEST}, "
            f"{GRAPH}, {LINEAR} and {TOKENIZER}."
        ) from error


def _checked(folder: Path, name: str, files: Mapping[str, str]) -> bytes:
    data = _read(folder, name)
    digest = hashlib.sha256(data).hexdigest()
    if digest != files.get(name):
        raise ModelError(
            f"{folder / name} has SHA-256 {digest}, the manifest says {files.get(name)}: the file "
            "is damaged or of another model; take both from one release."
        )
    return data
