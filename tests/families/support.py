"""What the sweep found, from its table: one line per class. Needs neither torch nor transformers.

A class is counted as
    all         no method is refused
    some        some methods explain
    chance      nothing but the random baseline explains
    not built   the shrunk configuration gives no model that runs
and faults are counted besides: an exception that is not ours, scores that mislead without a note, a changed model.
"""

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("support.csv")
METHODS = (
    "transformer_attribution",
    "generic_attention",
    "rollout",
    "raw_attention",
    "attcat",
    "attnlrp",
    "gradient_x_input",
    "grad_cam",
    "leave_one_out",
    "chance",
)
CHECKS = ("alone", "eager", "by_hand", "conserved", "noted", "unchanged")
COLUMNS = ("task", "architecture", "class", *METHODS, *CHECKS, "reasons")
STATES = ("all", "some", "chance", "not built")
FAULTS = ("FOREIGN", "SILENT", "WRONG", "TIMEOUT")


@dataclass(frozen=True)
class Line:
    """One class: a word for every method and check, where `r1` and so on are reasons."""

    task: str
    architecture: str
    name: str
    words: dict[str, str]
    reasons: dict[str, str]  # r1 -> sentence

    @property
    def state(self) -> str:
        if not any(self.words.values()):
            return "not built"
        works = [method for method in METHODS if self.words[method] in ("ok", "zero")]
        if len(works) == len(METHODS):
            return "all"
        return "some" if set(works) - {"chance"} else "chance"

    @property
    def faults(self) -> list[str]:
        """`method: FOREIGN r1` and the like."""
        return [f"{what}: {word}" for what, word in self.words.items() if word.split(" ")[0] in FAULTS]

    def has_fault(self, kind: str) -> bool:
        return any(word.split(" ")[0] == kind for word in self.words.values())


def read_table(path: Path = TABLE) -> list[Line]:
    with path.open(newline="") as file:
        return [read_line(row) for row in csv.DictReader(file)]


def read_line(row: dict[str, str]) -> Line:
    reasons = dict(part.split(" ", 1) for part in row["reasons"].split(" ¦ ") if part)
    words = {name: row[name] for name in (*METHODS, *CHECKS)}
    return Line(row["task"], row["architecture"], row["class"], words, reasons)


def format_row(
    task: str, architecture: str, name: str, words: dict[str, str], reasons: dict[str, str]
) -> dict[str, str]:
    """A row of the table; equal reasons are written once."""
    numbers: dict[str, str] = {}
    row = {"task": task, "architecture": architecture, "class": name}
    for what in (*METHODS, *CHECKS):
        word, reason = words.get(what, ""), reasons.get(what)
        if reason:
            number = numbers.setdefault(reason, f"r{len(numbers) + 1}")
            word = number if word == "refused" else f"{word} {number}"
        row[what] = word
    if "built" in reasons:
        numbers[reasons["built"]] = "r1"
    row["reasons"] = " ¦ ".join(f"{number} {reason.replace('¦', '|')}" for reason, number in numbers.items())
    return row


def write_table(rows: Iterable[dict[str, str]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["task"], row["architecture"], row["class"])))


def count_states(lines: Iterable[Line]) -> Counter[str]:
    return Counter(line.state for line in lines)


def summarise(lines: list[Line]) -> str:
    """The totals, by task and in all."""
    heads = [*STATES, "foreign", "silent", "wrong", "timeout"]
    rows = [f"{'':16}" + "".join(f"{head:>11}" for head in heads)]
    for task in [*dict.fromkeys(line.task for line in lines), "in all"]:
        some = [line for line in lines if task in (line.task, "in all")]
        counts = [count_states(some)[state] for state in STATES]
        faults = [sum(line.has_fault(kind) for line in some) for kind in FAULTS]
        rows.append(f"{task:16}" + "".join(f"{count:>11}" for count in counts + faults))
    built = [line for line in lines if line.state != "not built"]
    share = count_states(built)["all"] / max(1, len(built))
    return "\n".join([*rows, f"{len(built)} of {len(lines)} classes were built; nothing is refused on {share:.1%}."])
