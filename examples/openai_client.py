"""The openai client against the HTTP gateway: `python examples/openai_client.py [BASE_URL]`.

Talks to http://127.0.0.1:8000/v1 unless told otherwise (`octavo serve --http 8000`; `pip install openai`).
"""

import sys

from openai import OpenAI

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0)
    print(answer.choices[0].message.content)
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            print(f"\n[{details.cached_tokens} of {chunk.usage.prompt_tokens} prompt tokens cached]")


if __name__ == "__main__":
    main()
