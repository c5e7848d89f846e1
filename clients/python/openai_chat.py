"""One question with the unmodified OpenAI SDK: `python clients/python/openai_chat.py "Hello!"`."""

import os
import sys

from openai import OpenAI


def main() -> None:
    """Streams the answer to the first argument."""
    question = sys.argv[1] if len(sys.argv) > 1 else "Hello! Who are you?"
    stream = OpenAI().chat.completions.create(  # OPENAI_BASE_URL and OPENAI_API_KEY
        model=os.environ.get("MODEL_ID", "chatmesh-tiny"),
        messages=[{"role": "user", "content": question}],
        max_tokens=200,
        temperature=0.3,  # a small model rambles at the default of 1
        stream=True,
    )
    for chunk in stream:
        sys.stdout.write(chunk.choices[0].delta.content or "" if chunk.choices else "")
        sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
