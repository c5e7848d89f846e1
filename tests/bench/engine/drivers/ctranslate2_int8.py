"""CTranslate2, int8 weights and activations, static batches. Usage: FOLDER THREADS.

The first call converts the folder beside itself (not counted: the harness starts it once before).
"""

import json
import sys
from pathlib import Path

from driver import Timing, reply_channel, serve

send = reply_channel()

import ctranslate2  # noqa: E402  # after standard output is kept

folder = Path(sys.argv[1])
converted = folder.with_name(folder.name + "-ctranslate2")
if not converted.exists():
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(folder)).convert(str(converted), quantization="int8", force=True)
vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
generator = ctranslate2.Generator(
    str(converted), device="cpu", compute_type="int8", intra_threads=int(sys.argv[2])
)
names = json.loads((converted / "vocabulary.json").read_text())


def generate(prompts: list[list[int]], new_tokens: int) -> Timing:
    """One batch; it tells nothing about the first token."""
    generator.generate_batch(
        [[names[token] for token in prompt] for prompt in prompts],
        max_length=new_tokens,
        min_length=new_tokens,
        include_prompt_in_result=False,
        max_batch_size=len(prompts),
        sampling_topk=1,
    )
    return Timing()


serve(vocabulary, send, generate)
