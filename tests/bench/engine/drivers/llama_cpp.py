"""llama.cpp through its own `llama-batched-bench`, which knows no cheaper way to serve a batch: no
sampling, no HTTP, no scheduler. Usage: FOLDER THREADS KIND TOOLS, KIND a GGUF type (F16, Q8_0).

The first call writes the GGUF files beside the folder.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

from driver import Timing, reply_channel, serve

send = reply_channel()
folder, threads, kind, tools = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
config = json.loads((folder / "config.json").read_text())


def convert(out: Path) -> None:
    """Writes the checkpoint as F16. The tool feeds random ids, yet it wants a vocabulary."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
    writer.add_token_merges(["a b"])  # the loader wants one; nothing is ever tokenised
    writer.add_eos_token_id(0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  # no mapping
            values = tensors.get_tensor(name).float().numpy()
            kept = np.float32 if values.ndim == 1 else np.float16
            target = names.get_name(name, (".weight",))
            writer.add_tensor(target, values.astype(kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


f16 = folder.with_name(f"{folder.name}-F16.gguf")
model = folder.with_name(f"{folder.name}-{kind}.gguf")
if not f16.exists():
    convert(f16)
if not model.exists():
    subprocess.run([tools / "llama-quantize", f16, model, kind, threads], check=True, stdout=2)


def generate(prompts: list[list[int]], new_tokens: int) -> Timing:
    """The tool makes prompts of its own, as many and as long."""
    count, length = len(prompts), len(prompts[0])
    context = -(-(length + new_tokens) // 256) * 256 * count  # whole pages of its KV cache
    sizes = ["-c", str(context), "-b", "2048", "-ub", "512"]
    load = ["-npp", str(length), "-ntg", str(new_tokens), "-npl", str(count)]
    run = ["-t", threads, "-tb", threads, "-fa", "on", "--output-format", "jsonl"]
    command = [tools / "llama-batched-bench", "-m", model, *sizes, *load, *run]
    rows: list[str] = []
    while not rows:  # its log thread sometimes loses the row at the exit
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    row = json.loads(rows[-1])
    # Its first tokens come with the end of the whole prefill.
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Timing(row["t_pp"], row["t_pp"] + row["t_tg"], peak_mib)


serve(config["vocab_size"], send, generate)
