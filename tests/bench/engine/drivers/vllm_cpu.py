"""vLLM's CPU build through AsyncLLM. Usage: FOLDER THREADS [DTYPE]."""

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from driver import Timing, reply_channel, serve

KV_CACHE_GIB = "2"

if __name__ == "__main__":  # its engine core is a spawned process that imports this file
    send = reply_channel()
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def start() -> AsyncLLM:
        """The engine, inside the running loop."""
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=sys.argv[1],
                dtype=sys.argv[3] if len(sys.argv) > 3 else "float32",
                max_model_len=2048,
                max_num_seqs=64,
                skip_tokenizer_init=True,
                enable_prefix_caching=False,
            )
        )

    engine = loop.run_until_complete(start())
    count = 0

    async def one(prompt: list[int], new_tokens: int) -> float:
        """Answers one prompt; the time to its first token in seconds."""
        global count
        count += 1
        begin, first = time.perf_counter(), 0.0
        parameters = SamplingParams(
            max_tokens=new_tokens,
            ignore_eos=True,
            temperature=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for _ in engine.generate({"prompt_token_ids": prompt}, parameters, str(count)):
            first = first or time.perf_counter()
        return first - begin

    async def batch(prompts: list[list[int]], new_tokens: int) -> Timing:
        """All at once; the median time to a first token."""
        firsts = await asyncio.gather(*(one(p, new_tokens) for p in prompts))
        return Timing(statistics.median(firsts))

    vocabulary = json.loads((Path(sys.argv[1]) / "config.json").read_text())["vocab_size"]
    serve(vocabulary, send, lambda prompts, n: loop.run_until_complete(batch(prompts, n)))
    engine.shutdown()
