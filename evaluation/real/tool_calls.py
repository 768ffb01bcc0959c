"""Do the words that decide a tool call come first? Calls with known causes: two functions, two places named.

PYTHONPATH=evaluation python -m real.tool_calls smollm2

Each question names two places and asks about one of them. Measured are calls that the model writes itself, token by
token: with the right function, and with either city, since it sometimes takes the wrong one. The words of the question
are left out one by one; the word that costs the function's name most must be the one that names what is asked, the word
that costs the city most must be the city that was written.
"""

import argparse
import json
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch

import whyformer as why
from real.shelf import find_cache

CALLS = 30
RESULTS = Path(__file__).parent / "results" / "tool_calls.json"
SYSTEM = """You can call these functions:
get_weather(city): the weather in a city
get_time(city): the local time in a city
Answer with one function call in JSON, nothing else."""
SHOWN = [
    ("I live in Cairo. What is the weather like in Madrid?", "get_weather", "Madrid"),
    ("My friend lives in Tokyo. What time is it in Lima?", "get_time", "Lima"),
]
QUESTIONS = [  # what is asked, the function, the word that decides
    ("What is the weather like in {}?", "get_weather", "weather"),
    ("What time is it in {}?", "get_time", "time"),
    ("How is the weather in {} today?", "get_weather", "weather"),
    ("Tell me the local time in {}.", "get_time", "time"),
    ("Is the weather nice in {}?", "get_weather", "weather"),
]
CONTEXTS = ["I live in {}.", "My sister moved to {}.", "The office is in {}."]
PLACES = ["Oslo", "Rome", "Paris", "Boston", "Berlin", "Sydney", "Vienna", "Dublin", "Athens", "Prague"]


def write_call(function: str, city: str) -> str:
    return json.dumps({"name": function, "arguments": {"city": city}})


def list_cases() -> list[dict[str, str]]:
    """Every question in every context, with places in turn."""
    places = cycle(PLACES)
    cases = []
    for shift, context, (question, function, word) in product(range(3), CONTEXTS, QUESTIONS):
        for _ in range(shift):
            next(places)
        elsewhere, city = next(places), next(places)
        text = f"{context.format(elsewhere)} {question.format(city)}"
        cases.append({"text": text, "function": function, "word": word, "city": city, "elsewhere": elsewhere})
    return cases


def make_messages(text: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}]
    for question, function, city in SHOWN:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": write_call(function, city)},
        ]
    return [*messages, {"role": "user", "content": text}]


def measure(model: why.Model, case: dict[str, str]) -> dict[str, Any] | None:
    """The first word for each part; None if the model would write another call."""
    for city in (case["city"], case["elsewhere"]):
        answer = write_call(case["function"], city)
        prompt = why.Prompt.from_messages(model, make_messages(case["text"]), answer=answer)
        if not any(why.check_answer(model, prompt).ranks):
            break
    else:
        return None
    found = why.explain_tool_call(model, prompt, within=["user 3"])
    first = {part.name: found.top(part.name, 1)[0] for part in found.parts}
    strip = {name: (word.strip(".,?!"), adds) for name, (_, word, adds) in first.items()}
    return {
        **case,
        "written": city,
        "first_of_function": strip["function"],
        "first_of_city": strip["argument city"],
        "right": strip["function"][0] == case["word"] and strip["argument city"][0] == city,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in parser.parse_args().names:
        model, rows, others = why.open(find_cache() / name, dtype=torch.float32), [], 0
        for case in list_cases():
            row = measure(model, case)
            others += row is None
            rows += [row] if row else []
            right = sum(row["right"] for row in rows)
            function = sum(row["first_of_function"][0] == row["word"] for row in rows)
            city = sum(row["first_of_city"][0] == row["written"] for row in rows)
            summary = {"calls": len(rows), "right": right, "function": function, "city": city, "other_calls": others}
            summary["wrong_city_written"] = sum(row["written"] != row["city"] for row in rows)
            stored[name] = {"summary": summary, "rows": rows}
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
            print(name, summary, case["text"], flush=True)
            if len(rows) == CALLS:
                break


if __name__ == "__main__":
    main()
