"""A diagnosis: what whyformer found in a model, which methods work on it, and what each costs.

d = diagnose(model, "a gorgeous film")
print(d); d.save("doctor.html"); d.exit_code
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from whyformer._plain import archive
from whyformer.errors import InputError
from whyformer.results.result import Result, choose_formats
from whyformer.show.blocks import Badge, Block, DataTable, Facts, Notes, PageSection, Paragraph, Report
from whyformer.show.page_facts import list_facts
from whyformer.show.visible import make_visible

CheckState = Literal["works", "refused", "failed", "does not apply"]
SOME_FAILED, NONE_WORK = 6, 7  # exit status of the command line
HEADINGS = ("method", "state", "time", "x forward", "memory")
BADGES: Mapping[str, Literal["good", "bad"]] = {"works": "good", "refused": "bad", "failed": "bad"}


@dataclass(frozen=True)
class MethodCheck:
    """One method, tried on the input."""

    method: str
    state: CheckState
    code: str = ""  # of the error, if it does not work
    reason: str = ""
    seconds: float | None = None
    forwards: float | None = None  # the same as a multiple of a plain forward pass
    memory: int | None = None  # bytes at most in use above what was in use before; None if that cannot be measured
    settings: Mapping[str, Any] = field(default_factory=dict)  # if it was tried with less than its default budget
    spent: Mapping[str, float] = field(default_factory=dict)  # passes through the model, by kind
    notes: tuple[str, ...] = ()
    reads_model: bool = True  # False for the random control, which works on everything
    is_default: bool = False  # explain() uses it for this input


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What was found in a model, and a check of each method.

    found: name -> a sentence. seconds, memory: of a plain forward pass, on this machine.
    Files: .json has everything; .html, .txt and .md show it.
    """

    formats = choose_formats(".json .html .txt .md")

    model: str
    found: Mapping[str, str]
    checks: tuple[MethodCheck, ...]
    seconds: float | None
    memory: int | None
    machine: str
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Diagnosis of {make_visible(self.model)}: {self.verdict}>"

    def __iter__(self) -> Iterator[MethodCheck]:
        return iter(self.checks)

    def __getitem__(self, method: str) -> MethodCheck:
        for check in self.checks:
            if check.method == method:
                return check
        tried = ", ".join(check.method for check in self.checks)
        raise InputError(f"{method!r} was not tried. Tried: {tried}.", code="E_METHOD")

    def records(self) -> list[dict[str, object]]:
        """One mapping per method: whether it works, why not, and what it costs."""
        names = ("method", "state", "code", "reason", "seconds", "forwards", "memory", "is_default")
        return [{name: getattr(check, name) for name in names} for check in self.checks]

    def list_methods(self, state: CheckState) -> list[str]:
        """The names of the methods in this state."""
        return [check.method for check in self.checks if check.state == state]

    def group_reasons(self) -> dict[tuple[str, str], list[str]]:
        """(code, reason) -> the methods that do not work for this reason."""
        groups: dict[tuple[str, str], list[str]] = {}
        for check in self.checks:
            if check.state != "works":
                groups.setdefault((check.code, check.reason), []).append(check.method)
        return groups

    @property
    def exit_code(self) -> int:
        """0 if every method that applies to this input works, 6 if some do not, 7 if none does."""
        counted = [check for check in self.checks if check.state != "does not apply"]
        if not any(check.state == "works" and check.reads_model for check in counted):
            return NONE_WORK
        return 0 if all(check.state == "works" for check in counted) else SOME_FAILED

    @property
    def verdict(self) -> str:
        """The result in one line."""
        counts = {state: len(self.list_methods(state)) for state in ("works", "refused", "failed", "does not apply")}
        applying = len(self.checks) - counts["does not apply"]
        if self.exit_code == 0:
            return f"All {applying} methods work."
        working = "No method works" if self.exit_code == NONE_WORK else f"{counts['works']} of {applying} methods work"
        others = [f"{count} {state}" for state, count in counts.items() if state in ("refused", "failed") and count]
        return f"{working}; {', '.join(others)}." if others else f"{working}."

    def to_fields(self) -> archive.WrittenFields:
        """Plain values for a file, with the verdict and the exit status."""
        checks = [vars(check) for check in self.checks]
        return {**vars(self), "checks": checks, "verdict": self.verdict, "exit_code": self.exit_code}

    def _report(self) -> Report:
        rows = []
        for check in self.checks:
            name, _, *numbers = describe_check(check)
            rows.append([name, Badge(check.state, BADGES.get(check.state, "")), *numbers])
        reasons: list[Block] = [
            block
            for (code, reason), methods in self.group_reasons().items()
            for block in (Paragraph(f"{', '.join(methods)} [{code}]", "strong"), reason)
        ]
        remarks: list[Block] = [
            Paragraph(f"{one.method}: {' '.join(one.notes)}", "dim") for one in self.checks if one.notes
        ]
        found = PageSection("What was found", [Facts(self.found)])
        methods = PageSection("Methods", [DataTable(HEADINGS, rows), *reasons, *remarks])
        end: list[Block] = [
            Paragraph(self.verdict, "strong"),
            Paragraph(self.describe_measurement(), "dim"),
            Notes(self.notes),
        ]
        facts = list_facts(self.model, {}, self.versions)
        return Report(f"Doctor: {self.model}", [found, methods, *end], self.verdict, facts)

    def describe_measurement(self) -> str:
        """What the times and the memory mean."""
        plain = "" if self.seconds is None else f" A plain forward pass took {format_seconds(self.seconds)}."
        reduced = [check.method for check in self.checks if check.settings and check.state == "works"]
        less = f" With a small budget (full=True, --full: the default): {', '.join(reduced)}." if reduced else ""
        return f"Measured on this machine: {self.machine}.{plain}{less}"


def describe_check(check: MethodCheck) -> list[str]:
    """The cells of a row: method, state, time, multiple of a forward pass, memory."""
    name = f"{check.method} (default)" if check.is_default else check.method
    forwards = "" if check.forwards is None else f"{check.forwards:.1f}"
    return [name, check.state, format_seconds(check.seconds), forwards, format_memory(check.memory)]


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_memory(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 2**20:.1f} MB" if count < 2**30 else f"{count / 2**30:.1f} GB"
