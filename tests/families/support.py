"""What the sweep found, from its table: one line per class. Needs neither torch nor transformers.

A class is counted as
    all         no method that applies is refused
    some        some methods explain
    chance      nothing but the random baseline explains
    not built   the shrunk configuration gives no model that runs
and faults are counted besides: an exception that is not ours, scores that mislead without a note, a changed model.

not_counted.csv has the classes that cannot be built and those in which methods on attention do not apply, with a reason
each. It is written by hand and fixes what shares are shares of; the sweep does not change it.
"""

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("support.csv")
NOT_COUNTED = Path(__file__).with_name("not_counted.csv")
METHODS = (
    "default",
    "libragrad",
    "gamma_attribution",
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
ON_ATTENTION = frozenset(
    "gamma_attribution transformer_attribution generic_attention rollout raw_attention attcat grad_cam".split()
)
CHECKS = (
    "fed",
    "no_target",
    "advice",
    "alone",
    "eager",
    "by_hand",
    "order",
    "loud",
    "first",
    "conserved",
    "noted",
    "unchanged",
)
COLUMNS = ("task", "architecture", "class", *METHODS, *CHECKS, "versions", "reasons")
STATES = ("all", "some", "chance", "not built")
FAULTS = ("FOREIGN", "SILENT", "WRONG", "TIMEOUT")
MEANINGS = {
    "all": "nothing is refused",
    "some": "some methods explain",
    "chance": "nothing but the random baseline, or not even that",
    "not built": "no model was built",
}

# Cases that differ from the first sweep, and how. None was removed.
EDITED: dict[str, str] = {
    "siglip2": "patches, cut and flattened, instead of images: the model could not be built",
    "blip": "an image beside the text: the model could not run",
    "vilt": "an image beside the text: the model could not run",
    "depth": "the target is the last number that is returned: a class was asked for, which there is not",
    "detection": "the target is the last number that is returned: a class was asked for, which there is not",
    "semantic_seg": "the target is the last number that is returned: a class was asked for, which there is not",
    "universal_seg": "the target is the last number that is returned: a class was asked for, which there is not",
    "base": "the target is the representation: there was none",
    "choice": "the target is the second choice: there was none",
    "ctc": "the target is a character in the third frame: it was number 1, which is no class here",
    "masked_lm": "the target is token 7 at position 3: it was number 1, which is no class here",
    "qa": "the target is the span of tokens 2 to 4: it was number 1, which is no class here",
    "token_cls": "the target is class 1 of tokens 3 and 4: it was number 1, which is no class here",
    "chunk_size": "state spaces work in chunks of 16 tokens: of 256, they took minutes",
    "layer_types": "one layer of each kind, where all layers are listed: the model could not be built",
    "attention_window": "windows of 8 tokens (and blocks, of Pegasus-X): of 512, texts were padded to 512 tokens",
    "decoder_start_token_id": "set where the default configuration of an encoder and a decoder has none",
    "pixel_values_videos": "a video for models that name it so: they could not run",
    "vit_mae": "the noise by which patches are masked: each run drew other patches",
    "xlnet": "padding before the text, where its tokenizer puts it: the answer was read at padding",
    "vjepa2": "4 frames of 64 x 64 pixels: of 64 x 256 x 256, it took minutes",
    "mobilevitv2": "one block in each stage: it took minutes",
    "speech_encoder_layers": "two layers, of 24",
}


@dataclass(frozen=True)
class Line:
    """One class: a word for every method and check, where `r1` and so on are reasons."""

    task: str
    architecture: str
    name: str
    words: dict[str, str]
    reasons: dict[str, str]  # r1 -> sentence
    versions: str = ""  # of torch and transformers

    @property
    def state(self) -> str:
        if not any(self.words.values()):
            return "not built"
        works = {method for method in METHODS if self.words[method] in ("ok", "zero")}
        tried = {method for method in METHODS if self.words[method]}
        if works >= tried - (ON_ATTENTION if has_no_attention(self.name) else set()):
            return "all"
        return "some" if works - {"chance"} else "chance"

    @property
    def default_is_right(self) -> bool:
        """Whether the default answers, and no check of this class failed."""
        return self.words["default"] in ("ok", "zero") and not self.faults

    @property
    def faults(self) -> list[str]:
        """`method: FOREIGN r1` and the like."""
        return [f"{what}: {word}" for what, word in self.words.items() if word.split(" ")[0] in FAULTS]

    def has_fault(self, kind: str) -> bool:
        return any(word.split(" ")[0] == kind for word in self.words.values())


@cache
def read_not_counted() -> dict[str, tuple[str, str]]:
    """Class -> why, "not built" or "no attention", and the reason."""
    with NOT_COUNTED.open(newline="") as file:
        return {row["class"]: (row["why"], row["reason"]) for row in csv.DictReader(file)}


def has_no_attention(name: str) -> bool:
    return read_not_counted().get(name, ("", ""))[0] == "no attention"


def read_table(path: Path = TABLE) -> list[Line]:
    with path.open(newline="") as file:
        return [read_line(row) for row in csv.DictReader(file)]


def read_line(row: dict[str, str]) -> Line:
    reasons = dict(part.split(" ", 1) for part in row["reasons"].split(" ¦ ") if part)
    words = {name: row.get(name, "") for name in (*METHODS, *CHECKS)}
    return Line(row["task"], row["architecture"], row["class"], words, reasons, row.get("versions", ""))


def format_row(
    task: str, architecture: str, name: str, words: dict[str, str], reasons: dict[str, str], versions: str
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
    row["versions"] = versions
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
    return "\n".join([*rows, describe_shares(lines)])


def count_served(lines: list[Line]) -> tuple[int, int, int]:
    """On how many classes the default is right, on how many nothing that applies is refused, of how many.

    Of the classes that can be built: a class that is not on the list and was not built counts as refused.
    """
    counted = [line for line in lines if read_not_counted().get(line.name, ("", ""))[0] != "not built"]
    right, served = (sum(map(test, counted)) for test in (lambda x: x.default_is_right, lambda x: x.state == "all"))
    return right, served, len(counted)


def describe_shares(lines: list[Line]) -> str:
    right, served, counted = count_served(lines)
    total = max(1, counted)
    return (
        f"Of {counted} classes (of {len(lines)}; {len(lines) - counted} cannot be built): the default answers and "
        f"every check passes on {right} ({right / total:.1%}), nothing that applies is refused on {served} "
        f"({served / total:.1%})."
    )


# --- the page --------------------------------------------------------------------------------------------------------


CHECKED = (
    "Checked of every class: an example alone has the scores that it has in its batch, the attention is what the "
    "model returns itself, gradient x input is what autograd gives by hand, relevance and what absorbed it add up to "
    "what was sent, a map of zeros and a method that sees the attention of some blocks only carry a note, no exception "
    "is a stranger's, what a refusal advises works, and the model is afterwards what it was before. leave_one_out is "
    "what a loop over the tokens gives that calls the model itself."
)
LOUD = (
    "And one token is made loud: an embedding ten times as long as the others, in the direction in which the answer "
    "grows; behind a norm of the embeddings, what the norm returns is ten times as long. Where, by hand, leaving it "
    "out then matters more than leaving out any other token, leave_one_out must rank it first every time, and the "
    "default at more than half of these positions, of eight at most. The last token and the one at which the answer "
    "is read are not compared. {first}"
)


def make_support_page(lines: list[Line]) -> str:
    """docs/models.md: totals, then every class with what is refused and why, then what is not counted."""
    built, counts = [line for line in lines if line.state != "not built"], count_states(lines)
    faults = {kind: sum(line.has_fault(kind) for line in lines) for kind in FAULTS}
    intro = (
        f"{len(METHODS)} methods on {len(lines)} classes of transformers, {len({x.architecture for x in lines})} "
        f"architectures: tiny random models and a batch of two, with padding. {len(built)} could be built."
    )
    made_by = (
        "`make sweep` writes the table behind this page, `tests/families/support.csv`, and the page. This table: "
        f"{describe_versions(lines)}, in three parts, between which the engine changed a little."
    )
    tasks = [format_task(task, [x for x in lines if x.task == task]) for task in sorted({x.task for x in lines})]
    parts = [
        "# Supported models",
        intro,
        describe_shares(lines),
        format_table([["", "classes"], *([MEANINGS[state], str(counts[state])] for state in STATES)]),
        format_methods(built),
        f"{CHECKED} {describe_faults(faults)}",
        LOUD.format(first=describe_first(lines)),
        made_by,
        *tasks,
        "## Not counted",
        "Written by hand before the sweep (`tests/families/not_counted.csv`). Of classes without attention, methods on "
        "attention do not count; the others do.",
        format_table([["class", "why", "reason"], *([f"`{k}`", *why] for k, why in read_not_counted().items())]),
        "## Changed cases",
        "Tasks, architectures and settings whose cases differ from those of the first sweep. None was removed.",
        format_table([["of", "change"], *([f"`{name}`", change] for name, change in EDITED.items())]),
    ]
    return "\n\n".join(parts) + "\n"


def format_methods(built: list[Line]) -> str:
    """On how many classes each method explains; `no target` is the call that names neither method nor target."""
    rows = [["", "explains", "refused", "does not apply"]]
    for method in ("default", "no_target", *METHODS[1:]):
        inapplicable = [line for line in built if method in ON_ATTENTION and has_no_attention(line.name)]
        answers = sum(line.words[method] in ("ok", "zero") for line in built)
        refused = sum(line.words[method] not in ("ok", "zero") for line in built if line not in inapplicable)
        rows.append([method.replace("_", " " if method == "no_target" else "_"), *map(str, (answers, refused))])
        rows[-1].append(str(len(built) - answers - refused))
    return format_table(rows)


def describe_versions(lines: list[Line]) -> str:
    counts = Counter(line.versions for line in lines).most_common()
    return "; ".join(f"{count} {'class' if count == 1 else 'classes'} with {versions}" for versions, count in counts)


def describe_first(lines: list[Line]) -> str:
    """How often the default ranks the loud token first."""
    told = [line.words["first"] for line in lines if line.words["first"][:1].isdigit()]
    counts = [tuple(map(int, word.split("/"))) for word in told]
    first, heard = (sum(pair[i] for pair in counts) for i in (0, 1))
    most = sum(2 * pair[0] > pair[1] for pair in counts)
    return f"It does in {most} of {len(counts)} classes that could be checked so, at {first} of {heard} positions."


def describe_faults(faults: dict[str, int]) -> str:
    named = {"FOREIGN": "exceptions that are not ours", "SILENT": "misleading scores", "WRONG": "failed checks"}
    found = [f"{named.get(kind, 'timeouts')}: {count} classes" for kind, count in faults.items() if count]
    return f"Open faults: {'; '.join(found)} (marked ⚠)." if found else "No class has a fault by these checks."


def format_task(task: str, lines: list[Line]) -> str:
    full = [line for line in lines if line.state == "all" and not line.faults and line.words["no_target"] == "ok"]
    others = [line for line in lines if line not in full]
    parts = [f"## {task}"]
    if full:
        parts.append(f"Nothing is refused on {len(full)}: {', '.join(f'`{line.name}`' for line in full)}.")
    if others:
        heads = ["class", "default", "without a target", "refused"]
        rows = [[f"`{x.name}`", *(name_answer(x, y) for y in heads[1:3]), describe_line(x)] for x in others]
        parts.append(format_table([heads, *rows]))
    return "\n\n".join(parts)


def name_answer(line: Line, which: str) -> str:
    word = line.words["default" if which == "default" else "no_target"]
    return "yes" if word in ("ok", "zero") else "no" if word else ""


def describe_line(line: Line) -> str:
    """Which methods are refused, by reason."""
    if line.state == "not built":
        return f"not built: {clean(line.reasons.get('r1', ''))}"
    by_reason: dict[str, list[str]] = {}
    for what, word in line.words.items():
        kind, _, number = word.rpartition(" ")
        if number in line.reasons:
            by_reason.setdefault(number, []).append(f"⚠ {what} ({kind.lower()})" if kind else what)
    cells = []
    for number, names in by_reason.items():
        who = "every method" if len(names) == len(METHODS) else ", ".join(names)
        cells.append(f"{who}: {clean(line.reasons[number])}")
    return "<br>".join(cells)


def clean(text: str) -> str:
    """A reason as it can stand in a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def format_table(rows: list[list[str]]) -> str:
    head, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, f"|{' --- |' * len(rows[0])}", *rest])
