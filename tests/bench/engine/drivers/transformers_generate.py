"""transformers `generate`, float32, one static batch. Usage: FOLDER THREADS."""

import sys
import time

from driver import Timing, reply_channel, serve

send = reply_channel()

import torch  # noqa: E402  # after standard output is kept
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList  # noqa: E402

torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()


class FirstLogits(LogitsProcessor):
    """Notes when the first logits are there."""

    at = 0.0

    def __call__(self, input_ids, scores):  # type: ignore[no-untyped-def]
        """Called with each step's scores, which it leaves alone."""
        self.at = self.at or time.perf_counter()
        return scores


@torch.inference_mode()
def generate(prompts: list[list[int]], new_tokens: int) -> Timing:
    """One batch without padding: all prompts are of one length."""
    begin, first = time.perf_counter(), FirstLogits()
    ids = torch.tensor(prompts)
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
        logits_processor=LogitsProcessorList([first]),
    )
    return Timing(first.at - begin)


serve(model.config.vocab_size, send, generate)
