"""An unmodified OpenAI client talks to any node of the swarm.

    python examples/chat_client.py [URL_OF_A_NODE] [QUESTION]

Needs `pip install openai`.
"""

import sys
import time

from openai import OpenAI


def main() -> None:
    """Stream an answer, then say which node gave it and what was cached."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    question = sys.argv[2] if len(sys.argv) > 2 else "Why is the sky blue? Answer in one sentence."
    client = OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key="not needed")
    model = next(iter(client.models.list())).id

    started = time.perf_counter()
    first_text_s = 0.0
    with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    ) as response:
        for chunk in response.parse():
            if chunk.choices and (text := chunk.choices[0].delta.content):
                first_text_s = first_text_s or time.perf_counter() - started
                print(text, end="", flush=True)
            if chunk.usage and (details := chunk.usage.prompt_tokens_details):
                cached = f"{details.cached_tokens} of {chunk.usage.prompt_tokens}"
    print(f"\n\nserved by {response.headers['x-peerinfer-served-by']}", end="")
    print(f" ({response.headers['x-peerinfer-route']}), {cached} prompt tokens cached", end="")
    print(f", first text after {first_text_s:.2f} s")


if __name__ == "__main__":
    main()
