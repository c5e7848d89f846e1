"""What the gateway makes of what the nodes say of their models."""

from dataclasses import replace

import pytest

from chatmesh.inference.v1 import inference_pb2 as pb
from chatmesh.inference.v1 import inference_pb2_grpc
from gateway.turn.domain import ModelInfo
from gateway.upstreams.catalogue import Catalogue, merged
from gateway.upstreams.inference import Inference
from gateway.upstreams.pool import Pool
from tests.support.loopback import loopback

YESTERDAY = {
    "id": "chatmesh-tiny",
    "context_token_count_max": 4096,
    "tokenizer_digest": "d",
    "engine": "simulated",
    "created_unix_s": 1_700_000_000,
}
TODAY = YESTERDAY | {
    "draws_by_position": True,
    "weights_digest": "ab" * 32,
    "precision": "int8/int8 kernels-avx512 5bfbcb4ffd",
}


class Node(inference_pb2_grpc.InferenceServiceServicer):
    """Serves one model."""

    def __init__(self, fields: dict) -> None:
        self.fields = fields

    async def ListModels(self, request, context):  # noqa: N802  # the contract's name
        return pb.ListModelsResponse(models=[pb.Model(**self.fields)])


async def told(**fields: object) -> ModelInfo:
    """As the gateway reads it off the wire."""
    registration = (inference_pb2_grpc.add_InferenceServiceServicer_to_server, Node(fields))
    async with loopback([registration]) as channel:
        (found,) = await Inference(channel).list_models("")
    return found


async def test_a_node_of_yesterday_keeps_its_fingerprint_and_promises_nothing() -> None:
    found = await told(**YESTERDAY)
    assert (found.fingerprint, found.draws_by_position) == ("fp_0121b50b4c", False)
    later = await told(**YESTERDAY | {"created_unix_s": 1_700_000_001})
    assert later.fingerprint != found.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"weights_digest": "cd" * 32},
        {"weights_digest": ""},
        {"precision": "int8/int8 kernels-avx2 5bfbcb4ffd"},
        {"precision": ""},
        {"tokenizer_digest": "e"},
        {"engine": "torch"},
        {"id": "chatmesh-small"},
    ],
    ids=str,
)
async def test_whatever_decides_the_tokens_is_in_the_fingerprint(change) -> None:
    found = await told(**TODAY)
    assert found.draws_by_position
    assert (await told(**TODAY | change)).fingerprint != found.fingerprint


async def test_the_same_weights_have_one_fingerprint_whenever_they_were_copied() -> None:
    copy = await told(**TODAY | {"created_unix_s": 1_800_000_000})
    assert copy.fingerprint == (await told(**TODAY)).fingerprint


ONE = ModelInfo("m", 4096, "fp_1", 0, draws_by_position=True)


def test_nodes_that_agree_promise_what_each_does() -> None:
    assert merged([[ONE], [ONE]]) == {"m": ONE}
    assert not merged([[ONE], [replace(ONE, draws_by_position=False)]])["m"].draws_by_position


def test_where_nodes_differ_no_answer_can_be_drawn_again() -> None:
    other = replace(ONE, fingerprint="fp_2", context_token_count_max=2048)
    mixed = merged([[ONE], [other]])["m"]
    assert (mixed.draws_by_position, mixed.context_token_count_max) == (False, 2048)
    assert mixed.fingerprint not in {"fp_1", "fp_2"}
    assert merged([[other], [ONE], [other]])["m"] == mixed  # whoever answered first
    assert merged([[other, replace(ONE, id="n")]]) == {"m": other, "n": replace(ONE, id="n")}


async def test_the_catalogue_asks_again_and_sees_the_other_precision() -> None:
    now = 0.0
    node = Node(TODAY)
    registration = (inference_pb2_grpc.add_InferenceServiceServicer_to_server, node)
    async with loopback([registration]) as channel:
        catalogue = Catalogue(Inference(channel), Pool(), clock=lambda: now)
        before = await catalogue.find("chatmesh-tiny")
        node.fields = TODAY | {"precision": "bf16/bf16 kernels-avx512 0011223344"}
        now = 60.0
        after = await catalogue.find("chatmesh-tiny")
    assert before.draws_by_position
    assert after.draws_by_position
    assert before.fingerprint != after.fingerprint
