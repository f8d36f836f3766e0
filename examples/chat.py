"""A conversation whose later turns find the earlier ones in the prefix cache: `python examples/chat.py`.

Talks to OCTAVO_SERVER, else 127.0.0.1:7450 (`octavo serve`).
"""

from octavo_client import ChatMessage, Client

QUESTIONS = ("What is the capital of France?", "And of Italy?", "Which of the two is older?")


def main() -> None:
    turns = [ChatMessage("system", "You answer in one short sentence.")]
    with Client() as client:
        client.wait_ready()
        for question in QUESTIONS:
            turns.append(ChatMessage("user", question))
            answer = client.generate(messages=turns, max_tokens=32, temperature=0)
            turns.append(ChatMessage("assistant", answer.text))
            print(f"> {question}\n{answer.text}")
            print(
                f"[{answer.usage.cached_prompt_tokens} of {answer.usage.prompt_tokens} prompt tokens cached]"
            )


if __name__ == "__main__":
    main()
