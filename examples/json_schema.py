"""An answer that always fits a JSON schema: `python examples/json_schema.py`.

Talks to OCTAVO_SERVER, else 127.0.0.1:7450 (`octavo serve`).
"""

import json

from octavo_client import Client

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "country", "capital"],
    "additionalProperties": False,
}


def main() -> None:
    question = [{"role": "user", "content": "Describe Paris as JSON with city, country and capital."}]
    with Client() as client:
        client.wait_ready()
        answer = client.generate(
            messages=question, json_schema=json.dumps(SCHEMA), max_tokens=200, temperature=0
        )
    print(json.dumps(json.loads(answer.text), indent=2))


if __name__ == "__main__":
    main()
