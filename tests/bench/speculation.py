"""Generation speed of a rewriting task without and with prompt lookup, in alternation.

python tests/bench/speculation.py MODEL
"""

from __future__ import annotations

import sys

import edgert

TEXT = (
    "The old lighthouse keeper climbed the stairs every evening to light the lamp. His name was Thomas Finch, and he "
    "had kept the light for forty years. Ships from every port in the world had passed by his window, and he knew "
    "them by their lanterns. When the storms came he stayed awake all night."
)


def main() -> None:
    with edgert.load(sys.argv[1], n_ctx=2048) as model:
        ask = [{"role": "user", "content": f"Repeat this text word for word:\n\n{TEXT}"}]
        rates: dict[str | None, list[float]] = {None: [], "lookup": []}
        answers = set()
        for _ in range(3):
            for how, found in rates.items():
                answer = model.chat(ask, max_tokens=120, temperature=0, speculative=how)
                found.append(answer.timings.decode_rate)
                answers.add(answer.text)
        stats = model.stats()
        plain, guessed = (max(found) for found in rates.values())
        print(f"{plain:.1f} tokens/s, with lookup {guessed:.1f} = {guessed / plain:.2f} times; {stats.accepted} of "
              f"{stats.drafted} guesses right; answers {'equal' if len(answers) == 1 else 'DIFFER'}")  # fmt: skip


if __name__ == "__main__":
    main()
