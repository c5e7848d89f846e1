"""Our own engine as the service runs it, behind its event loop. Usage: FOLDER THREADS.

`INFERENCE_WEIGHTS` and `INFERENCE_KV` choose the precision, as for a node.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

from driver import Timing, reply_channel, serve

send = reply_channel()

from inference_svc.engine.choose import choose_engine  # noqa: E402
from inference_svc.engine.protocol import EngineRequest, Sampling, StopRule  # noqa: E402
from inference_svc.model_folder import open_model  # noqa: E402
from inference_svc.settings import Settings  # noqa: E402

folder = sys.argv[1]
settings = Settings(model=folder, redis_url="redis://unused", thread_count=int(sys.argv[2]))
vocabulary = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]
loop = asyncio.new_event_loop()
engine = choose_engine(settings, open_model(folder, ""))
loop.run_until_complete(engine.start())
count = 0


async def one(prompt: list[int], new_tokens: int) -> float:
    """Answers one prompt; the time to its first token in seconds."""
    global count
    count += 1
    begin, first = time.perf_counter(), 0.0
    stream = engine.submit(
        EngineRequest(str(count), prompt, StopRule(new_tokens), sampling=Sampling(temperature=0.0))
    )
    finish = None
    while finish is None:
        delta = await stream.take()
        first, finish = first or time.perf_counter(), delta.finish
    return first - begin


async def batch(prompts: list[list[int]], new_tokens: int) -> Timing:
    """All at once; the median time to a first token."""
    firsts = await asyncio.gather(*(one(p, new_tokens) for p in prompts))
    return Timing(statistics.median(firsts))


serve(vocabulary, send, lambda prompts, n: loop.run_until_complete(batch(prompts, n)))
loop.run_until_complete(engine.stop())
