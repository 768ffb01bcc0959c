"""The way of one `explain`: how many functions it enters, and how often it goes from one room to another.

What is measured is a call of a new length by the plan, once three calls of another text have checked, followed and
tried it. Those enter about twice as many (612 the second, 527 the third), which no limit here holds. Functions inside
expressions (lambdas, comprehensions) do not count. `_engine` with its rooms is one room. Run with -s to see figures.

    python tests/test_walk.py        writes the list of docs/architecture.md anew
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

import whyformer as why

SOURCE = f"{Path(why.__file__).parent}/"
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
HEADING = "## The walk of one explanation"
# Measured: 285 functions and 91 crossings. The limits before, 408 and 342, were for the second call, by a program.
MOST_FUNCTIONS, MOST_CROSSINGS = 290, 96


def room_of(file: str) -> str:
    return file.removeprefix(SOURCE).partition("/")[0].removesuffix(".py")


def walk(call) -> tuple[set[tuple[str, str]], Counter[tuple[str, str]]]:
    """The functions that a call enters, and the rooms between which it goes."""
    entered, crossings = set(), Counter()

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if not code.co_name.startswith("<"):
            entered.add((code.co_filename, code.co_qualname))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        if caller is not None and (before := room_of(caller.f_code.co_filename)) != (now := room_of(code.co_filename)):
            crossings[before, now] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered, crossings


def walk_once() -> tuple[set[tuple[str, str]], Counter[tuple[str, str]]]:
    model, text = why.open("demo/sentiment"), "a gorgeous, witty, seductive film"
    for _ in range(3):  # the full engine, and a plan on trial
        why.explain(model, text)
    return walk(lambda: why.explain(model, "a dull and tired film that nobody should see twice"))


def draw_list(entered: set[tuple[str, str]]) -> str:
    """The section of docs/architecture.md: each file with the functions that are entered in it."""
    functions = defaultdict(list)
    for file, name in sorted(entered):
        functions[file.removeprefix(SOURCE)].append(name)
    lines = [
        f"{HEADING}\n",
        f"{len(entered)} functions in {len(functions)} files (`python tests/test_walk.py` draws this list).\n",
    ]
    lines += ["```text", *(f"{file}: {', '.join(names)}" for file, names in functions.items()), "```"]
    return "\n".join(lines)


def list_files(section: str) -> set[str]:
    return set(re.findall(r"^([\w/]+\.py):", section, re.M))


def test_one_explanation_enters_few_functions_and_crosses_rooms_rarely():
    entered, crossings = walk_once()
    print(f"\n{len(entered)} functions entered, {crossings.total()} crossings between rooms")
    for (one, other), count in crossings.most_common():
        print(f"  {one} -> {other}: {count}")
    assert len(entered) <= MOST_FUNCTIONS
    assert crossings.total() <= MOST_CROSSINGS
    drawn = ARCHITECTURE.read_text().partition(HEADING)[2]
    assert list_files(drawn) == list_files(draw_list(entered)), "run python tests/test_walk.py"


if __name__ == "__main__":
    page = ARCHITECTURE.read_text()
    kept, _, rest = page.partition(HEADING)
    after = rest.partition("\n```\n")[2]
    ARCHITECTURE.write_text(kept + draw_list(walk_once()[0]) + "\n" + after)
