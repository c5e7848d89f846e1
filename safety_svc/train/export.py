"""The trained encoder as an ONNX graph with 8-bit weights.

The graph is written operator by operator rather than traced: matrix products are
`DynamicQuantizeMatMul` (activations quantised as they come, one scale for each output column),
and attention is spelled out, because the fused forms in onnxruntime are slower for one short text
(measured: 128 tokens, 3 layers on one core, 3.2 ms; with `MultiHeadAttention` 3.4, with
`SkipLayerNormalization` 4.3). One text at a time, no padding: inputs `ids` int64 [tokens],
`segment` int64 [1] and `limits` float32 [EXIT_COUNT]; outputs `logits` float32 [categories] and
`doubts` float32 [EXIT_COUNT]. Where a layer's doubt is below its limit, the rest is not computed:
every logit and later doubt is SETTLED.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from safety_svc.classifier.encoder import EXIT_COUNT, SETTLED
from safety_svc.train.encoder_net import EPSILON, FRESH_ID_MAX, HEADS, HIDDEN, Encoder, Layer

_OPSET, _IR_VERSION = 18, 9
_CONTRIB = "com.microsoft"


def export(net: Encoder, path: Path) -> None:
    """Writes `net` to `path`."""
    graph = _Graph()
    graph.constant("settled", np.full(len(net.head.bias), SETTLED, np.float32))
    for number in range(EXIT_COUNT):
        graph.constant(f"later{number}", np.full(EXIT_COUNT - 1 - number, SETTLED, np.float32))
        graph.constant(f"place{number}", np.array(number, np.int64))
    graph.from_layer(0, graph.embedded(net), net, [], ["logits", "doubts"])
    onnx.save(graph.model(), str(path))


class _Graph:
    """Nodes and constants as they are written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.constant("token_axis", np.array([0], np.int64))
        self.constant("zero", np.array([0], np.int64))
        self.constant("heads", np.array([0, 3, HEADS, HIDDEN // HEADS], np.int64))
        self.constant("flat", np.array([0, HIDDEN], np.int64))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str, **more: Any) -> str:
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **more))
        return output

    def embedded(self, net: Encoder) -> str:
        """Words, places and the segment, summed and normalised; the words in 8 bits, by row."""
        words = _array(net.words.weight).copy()
        words[1 : FRESH_ID_MAX + 1] += _array(net.fresh.weight)[1:]
        scales = np.maximum(np.abs(words).max(axis=1, keepdims=True), 1e-8) / 127
        self.constant("words", np.rint(words / scales).astype(np.int8))
        self.constant("word_scales", scales.astype(np.float32))
        self.constant("places", _array(net.places.weight))
        self.constant("segments", _array(net.segments.weight))
        self.node("Gather", ["words", "ids"], "word_steps")
        self.node("Cast", ["word_steps"], "word_floats", to=TensorProto.FLOAT)
        self.node("Gather", ["word_scales", "ids"], "word_scale")
        self.node("Mul", ["word_floats", "word_scale"], "word")
        self.node("Shape", ["ids"], "count")
        self.node("Slice", ["places", "zero", "count", "token_axis"], "place")
        self.node("Add", ["word", "place"], "placed")
        self.node("Gather", ["segments", "segment"], "segmented")
        self.node("Add", ["placed", "segmented"], "summed")
        return self.norm("embedded", "summed", net.norm)

    def from_layer(
        self, number: int, hidden: str, net: Encoder, doubts: list[str], outputs: list[str]
    ) -> list[str]:
        """Layer `number` over `hidden` and all that follows: logits and doubts, as `outputs`.

        After a layer with an exit the rest lies in the branch of an "If".
        """
        hidden = self.layer(f"layer{number}", hidden, net.layers[number])  # type: ignore[arg-type]
        if number >= EXIT_COUNT:
            if number + 1 < len(net.layers):
                return self.from_layer(number + 1, hidden, net, doubts, outputs)
            self.node("Identity", [self.head("judged", hidden, net.head)], outputs[0])
            self.node("Concat", doubts, outputs[1], axis=0)
            return outputs
        doubts = [*doubts, self.head(f"doubt{number}", hidden, net.exits[number])]  # type: ignore[arg-type]
        limit = self.node("Gather", ["limits", f"place{number}"], f"limit{number}", axis=0)
        self.node("Less", [doubts[-1], limit], f"settled{number}")

        def settled() -> list[str]:
            parts = [*doubts, f"later{number}"] if number + 1 < EXIT_COUNT else doubts
            self.node("Identity", ["settled"], f"nothing{number}")
            return [f"nothing{number}", self.node("Concat", parts, f"told{number}", axis=0)]

        def rest() -> list[str]:
            names = [f"logits{number}", f"doubts{number}"]
            return self.from_layer(number + 1, hidden, net, doubts, names)

        node = helper.make_node(
            "If",
            [f"settled{number}"],
            outputs,
            then_branch=self.branch(f"exit{number}", settled),
            else_branch=self.branch(f"rest{number}", rest),
        )
        self.nodes.append(node)
        return outputs

    def layer(self, name: str, hidden: str, layer: Layer) -> str:
        """One layer over [tokens, HIDDEN]."""
        scaled = _array(layer.qkv.weight).copy(), _array(layer.qkv.bias).copy()
        for part in scaled:  # the scale of attention, moved into the queries
            part[:HIDDEN] *= (HIDDEN // HEADS) ** -0.5
        joined = self.product(f"{name}_qkv", hidden, *scaled)
        self.node("Reshape", [joined, "heads"], f"{name}_heads")
        self.node("Transpose", [f"{name}_heads"], f"{name}_parts", perm=[1, 2, 0, 3])
        parts = [f"{name}_{one}" for one in "qkv"]
        self.nodes.append(
            helper.make_node("Split", [f"{name}_parts"], parts, axis=0, num_outputs=3)
        )
        scores = self.node(
            "FusedMatMul", parts[:2], f"{name}_scores", domain=_CONTRIB, transA=0, transB=1
        )
        shares = self.node("Softmax", [scores], f"{name}_shares", axis=-1)
        self.node("MatMul", [shares, parts[2]], f"{name}_seen")
        self.node("Squeeze", [f"{name}_seen", "token_axis"], f"{name}_squeezed")
        self.node("Transpose", [f"{name}_squeezed"], f"{name}_back", perm=[1, 0, 2])
        self.node("Reshape", [f"{name}_back", "flat"], f"{name}_context")
        out = self.linear(f"{name}_out", f"{name}_context", layer.out)
        self.node("Add", [out, hidden], f"{name}_sum1")
        middle = self.norm(f"{name}_norm1", f"{name}_sum1", layer.norm1)
        up = self.linear(f"{name}_up", middle, layer.up)
        self.node("FastGelu", [up], f"{name}_gelu", domain=_CONTRIB)
        down = self.linear(f"{name}_down", f"{name}_gelu", layer.down)
        self.node("Add", [down, middle], f"{name}_sum2")
        return self.norm(f"{name}_norm2", f"{name}_sum2", layer.norm2)

    def head(self, name: str, hidden: str, head: nn.Linear) -> str:
        """`head` of mean and peak over the tokens: one logit for each output."""
        parts = [f"{name}_mean", f"{name}_peak"]
        for operator, part in zip(("ReduceMean", "ReduceMax"), parts, strict=True):
            self.node(operator, [hidden, "token_axis"], part, keepdims=1)
        self.node("Concat", parts, f"{name}_pooled", axis=1)
        weight = self.constant(f"{name}_weight", _array(head.weight).T)
        bias = self.constant(f"{name}_bias", _array(head.bias))
        self.node("MatMul", [f"{name}_pooled", weight], f"{name}_product")
        self.node("Add", [f"{name}_product", bias], f"{name}_row")
        return self.node("Squeeze", [f"{name}_row", "token_axis"], name)

    def branch(self, name: str, write: Callable[[], list[str]]) -> onnx.GraphProto:
        """What `write` adds as a graph of its own, which sees the values outside."""
        outside = self.nodes, self.constants
        self.nodes, self.constants = [], []
        outputs = [helper.make_tensor_value_info(one, TensorProto.FLOAT, [None]) for one in write()]
        graph = helper.make_graph(self.nodes, name, [], outputs, self.constants)
        self.nodes, self.constants = outside
        return graph

    def linear(self, name: str, hidden: str, module: nn.Linear) -> str:
        return self.product(name, hidden, _array(module.weight), _array(module.bias))

    def product(
        self, name: str, hidden: str, weight: NDArray[np.float32], bias: NDArray[np.float32]
    ) -> str:
        """`hidden` times 8-bit weights, one scale for each output, plus the bias."""
        scales = np.maximum(np.abs(weight).max(axis=1), 1e-8) / 127
        inputs = [
            hidden,
            self.constant(f"{name}_weight", np.rint(weight / scales[:, None]).astype(np.int8).T),
            self.constant(f"{name}_scale", scales.astype(np.float32)),
            self.constant(f"{name}_zero", np.zeros(len(scales), np.int8)),
            self.constant(f"{name}_bias", bias),
        ]
        return self.node("DynamicQuantizeMatMul", inputs, name, domain=_CONTRIB)

    def norm(self, name: str, hidden: str, module: nn.LayerNorm) -> str:
        gain = self.constant(f"{name}_gain", _array(module.weight))
        shift = self.constant(f"{name}_shift", _array(module.bias))
        inputs = [hidden, gain, shift]
        return self.node("LayerNormalization", inputs, name, axis=-1, epsilon=EPSILON)

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"]),
            helper.make_tensor_value_info("segment", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("limits", TensorProto.FLOAT, [EXIT_COUNT]),
        ]
        outputs = [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None]),
            helper.make_tensor_value_info("doubts", TensorProto.FLOAT, [EXIT_COUNT]),
        ]
        graph = helper.make_graph(self.nodes, "encoder", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _array(parameter: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = parameter.detach().float().cpu().numpy()
    return values
