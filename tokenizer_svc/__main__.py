"""Starts the tokenizer: settings, tokenizer, service, serve."""

from chatmesh.tokenizer.v1.tokenizer_pb2_grpc import add_TokenizerServiceServicer_to_server
from mesh.chassis import Node, run
from tokenizer_svc.model_folder import read_model
from tokenizer_svc.prompt import ChatTokenizer
from tokenizer_svc.service import TokenizerService
from tokenizer_svc.settings import Settings


async def start(node: Node) -> None:
    """Serves until the process is asked to end."""
    settings = Settings()
    tokenizer = ChatTokenizer(read_model(settings.model), settings.cache_byte_count_max)
    service = TokenizerService({settings.served_model_id: tokenizer})
    await node.serve([(add_TokenizerServiceServicer_to_server, service)])
    service.close()


if __name__ == "__main__":
    run(start)
