"""How many shortcuts does the bulk summary find, and how many honest models does it accuse?

    python benchmarks/shortcuts.py --photos oxford_pets --texts sst2 [--half held_out] [--seeds 5 6] [--kinds tape kin]
                                   [--out FOLDER] [--table docs/data/shortcuts.json]
    python benchmarks/shortcuts.py --publish docs/data/shortcuts.json

Marks of many kinds are put on photographs and into sentences, a small model is trained on each, `bulk` explains new
items, and what `summarise_bulk` says is scored. The kinds were drawn once into two halves: limits of the summary were
chosen on one (`fitted`), and are reported on the other (`held_out`). A model *uses* its mark if it loses at least 10
points of accuracy on marked items when the mark is not there; a mark is *found* if one of the first three findings is
called suspicious and holds half of the marked items with at least 80 % precision; a model that is clean or ignores its
mark is *accused* if any finding is called suspicious.

Marks that somebody else drew:

    python benchmarks/shortcuts.py --photos oxford_pets --export FOLDER --seeds 5       # the photos to draw on
    python benchmarks/shortcuts.py --photos oxford_pets --drawn FOLDER/mark --seeds 5   # marked copies, same names

A finished case is kept in OUT/<case>/score.json and not computed again. A case takes about half a minute on one CPU
thread, and they run one after the other.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from shortcut_cases import photo_cases, text_cases  # noqa: E402
from shortcut_cases.cases import Case  # noqa: E402
from shortcut_cases.photo_marks import GROUPS, HELD_OUT, hold_out  # noqa: E402
from shortcut_cases.scores import name_role, score_findings  # noqa: E402

from whyformer._summary.track_record import FILE, Blameless, Marks, TrackRecord, read_track_record  # noqa: E402

METHOD = "attnlrp"
TEXT_KINDS = {
    "local": ("word", "phrase", "name", "kin", "choice", "pair", "code"),
    "whole": ("length", "punctuation"),
}
KNOWN_TEXTS = ("word", "phrase", "choice", "kin", "length")  # before the halves were drawn: never held out
HELD_OUT_TEXTS = {name for kinds in TEXT_KINDS.values() for name in hold_out(dict.fromkeys(kinds), KNOWN_TEXTS)}
PAGE = ROOT / "docs/bulk-summary.md"
BEGIN, END = "<!-- table of benchmarks/shortcuts.py -->", "<!-- end of the table -->"
Scored = dict[str, object]


def list_cases(half: str, seeds: Sequence[int], worlds: Sequence[str], kinds: Sequence[str]) -> list[Case]:
    """Seed by seed: every kind of this half, a model that ignores a mark, and clean ones (`easy`: of unlike breeds)."""
    cases = []
    for seed in seeds:
        for world in worlds:
            groups = GROUPS if world == "pets" else {name: dict.fromkeys(some) for name, some in TEXT_KINDS.items()}
            held = HELD_OUT if world == "pets" else HELD_OUT_TEXTS
            own = [kind for some in groups.values() for kind in some if (kind in held) == (half == "held_out")]
            own = [kind for kind in own if not kinds or kind in kinds]
            cases += [Case(world, kind, photo_cases.SHARE, seed, "planted") for kind in own]
            local = [kind for kind in own if kind in groups["local"]]
            if local:
                cases.append(Case(world, local[seed % len(local)], photo_cases.SHARE, seed, "ignoring"))
            cases += [Case(one, "none", 0.0, seed, "clean") for one in (world, *(["easy"] if world == "pets" else []))]
    return cases


def evaluate(case: Case, folder: Path, settings: dict[str, str | None]) -> Scored:
    """Train the model of a case, explain and summarise its items."""
    import whyformer as why

    torch.set_num_threads(1)
    start = time.process_time()
    if case.world in text_cases.WORLDS:
        text_cases.prepare(case, folder, {"sst2": settings.get("texts"), "imdb": None})
        truth = json.loads((folder / "truth.json").read_text("utf-8"))
        data, masks = folder / "texts.csv", None
    else:
        assert settings["photos"] is not None
        tasks = photo_cases.EASY_TASKS if case.world == "easy" else photo_cases.TASKS
        truth = photo_cases.prepare(case.kind, case.role, case.seed, folder, Path(settings["photos"]), tasks)
        truth["marks"] = {case.kind: truth["marked"]} if truth["marked"] else {}
        data, masks = folder / "images", folder / "masks"  # which label findings, and judge none
    trained = time.process_time()
    shutil.rmtree(folder / "run", ignore_errors=True)
    why.bulk(folder / "model", data, METHOD, out=folder / "run", workers=1, device="cpu")
    explained = time.process_time()
    model = why.open(folder / "model", device="cpu")
    found = why.summarise_bulk(folder / "run", model, masks=masks, test_limit=16)
    seconds = [round(one, 1) for one in (trained - start, explained - trained, time.process_time() - explained)]
    score = score_findings(found.findings, truth["marks"])
    role = name_role(case.role, truth["with_mark"], truth["without_mark"])
    first = found.suspicious[score.rank - 1].without if score.rank else None
    fall = first.right_before - first.right_after if first is not None and first.right_before is not None else None
    row = {
        "world": case.world, "kind": case.kind, "seed": case.seed, "planned": case.role, "role": role,
        "with_mark": truth["with_mark"], "without_mark": truth["without_mark"],
        "marked": sum(map(len, truth["marks"].values())), "found": score.found, "accused": score.accused,
        "missed": score.missed, "rank": score.rank, "fall": fall, "verdict": found.verdict, "seconds": seconds,
    }  # fmt: skip
    (folder / "score.json").write_text(json.dumps(row) + "\n", "utf-8")
    return row


def name_group(row: Scored) -> str:
    """local, thin, whole or, of marks that somebody else drew, drawn."""
    kinds = GROUPS if row["world"] == "pets" else TEXT_KINDS
    return next((name for name, some in kinds.items() if row["kind"] in some), "drawn")


def is_held_out(row: Scored) -> bool:
    return row["kind"] in (HELD_OUT if row["world"] == "pets" else HELD_OUT_TEXTS)


def count_rows(rows: Sequence[Scored]) -> TrackRecord:
    """Of the kinds held out: by kind how many marks were used and found; of all: how many honest models are accused."""
    used: dict[str, dict[str, Marks]] = {"local": {}, "apart": {}, "drawn": {}}
    for row in rows:
        group = name_group(row)
        if row["role"] == "used" and (is_held_out(row) or group == "drawn"):
            part = used[group if group in used else "apart"]
            count = part.setdefault(Path(str(row["kind"])).name, {"used": 0, "found": 0})
            count["used"] += 1
            count["found"] += bool(row["found"])
    return {
        "local": used["local"],
        "apart": used["apart"],
        "clean": count_accused(rows, "clean"),
        "ignoring": count_accused(rows, "ignoring"),
        "outside": used["drawn"] or read_track_record()["outside"],  # of marks that others drew
    }


def count_accused(rows: Sequence[Scored], role: str) -> Blameless:
    own = [bool(row["accused"]) for row in rows if row["role"] == role]
    return {"models": len(own), "accused": sum(own)}


def make_table(rows: Sequence[Scored]) -> str:
    """Markdown: by half, group and kind, what was used, found and missed; then the models not to be accused."""
    lines = ["| kinds | | used | found | accuracy with / without | missed |", "|---|---|---|---|---|---|"]
    for half in (True, False):
        for group in ("local", "thin", "whole", "drawn"):
            own = [row for row in rows if row["role"] == "used" and is_held_out(row) == half]
            own = [row for row in own if name_group(row) == group]
            for world, kind in dict.fromkeys((str(row["world"]), str(row["kind"])) for row in own):
                some = [row for row in own if (row["world"], row["kind"]) == (world, kind)]
                means = [
                    sum(float(str(row[name])) for row in some) / len(some) for name in ("with_mark", "without_mark")
                ]
                lines.append(
                    f"| {name_half(half, group)} | {Path(kind).name} ({world}) | {len(some)} | "
                    f"{sum(bool(row['found']) for row in some)} | {means[0]:.0%} / {means[1]:.0%} | "
                    f"{describe_missed(some)} |"
                )
    counts = [(f"{role}: {part['models']} models", part["accused"]) for role in ("clean", "ignoring")
              if (part := count_accused(rows, role))]  # fmt: skip
    lines += ["", "| models | accused |", "|---|---|", *(f"| {name} | {accused} |" for name, accused in counts)]
    return "\n".join([*lines, "", describe_falls(rows)])


def name_half(is_held: bool, group: str) -> str:
    return "drawn by others" if group == "drawn" else f"{'held out' if is_held else 'fitted'}, {group}"


def describe_falls(rows: Sequence[Scored]) -> str:
    """How often the fall of accuracy that the first finding tells is that of removing the mark by its own pixels."""
    pairs = [(float(str(row["fall"])), float(str(row["with_mark"])) - float(str(row["without_mark"])))
             for row in rows if row["role"] == "used" and row["found"] and row["fall"] is not None]  # fmt: skip
    near = sum(0.5 * true <= told <= 1.25 * true for told, true in pairs)
    return f"In {near} of {len(pairs)} found marks the told fall is between half and 1.25 times the true one."


def describe_missed(rows: Sequence[Scored]) -> str:
    missed = Counter(str(row["missed"]) for row in rows if not row["found"])
    return "; ".join(f"{why} ({count})" if count > 1 else why for why, count in sorted(missed.items()))


def write_table(rows: Sequence[Scored], file: Path) -> None:
    """All rows as one JSON file, one row a line."""
    rows = sorted(rows, key=lambda row: (row["world"], row["kind"], row["seed"], row["planned"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", "utf-8")


def publish(rows: Sequence[Scored]) -> None:
    """Write the table into docs/bulk-summary.md, and the counts that the verdict of a summary quotes."""
    FILE.write_text(json.dumps(count_rows(rows), indent=1) + "\n", "utf-8")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{make_table(rows)}\n\n{END}{after}", "utf-8")
    print(make_table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("shortcuts"), help="for models, data, runs and scores")
    parser.add_argument("--half", choices=("held_out", "fitted"), default="held_out")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5, 15)))
    parser.add_argument("--kinds", nargs="+", default=[], help="of this half; by default all")
    parser.add_argument("--photos", help="a folder in the layout of oxford_pets")
    parser.add_argument("--texts", help="a folder in the layout of sst2")
    parser.add_argument("--export", type=Path, help="write the photos for somebody to draw a mark on, and stop")
    parser.add_argument("--drawn", type=Path, nargs="+", help="folders of marked copies of the exported photos")
    parser.add_argument("--table", type=Path, help="write all rows as JSON")
    parser.add_argument("--publish", type=Path, help="put the table of this file into docs and package")
    arguments = parser.parse_args()
    if arguments.publish:
        publish(json.loads(arguments.publish.read_text("utf-8")))
        return
    if arguments.export:
        print(photo_cases.export(arguments.export, arguments.seeds[0], Path(arguments.photos), arguments.out), "photos")
        return
    worlds = ["pets"] * bool(arguments.photos) + ["sst2"] * bool(arguments.texts)
    cases = list_cases(arguments.half, arguments.seeds, worlds, arguments.kinds)
    if arguments.drawn:
        cases = [
            Case("pets", str(folder), photo_cases.SHARE, arguments.seeds[0], "planted") for folder in arguments.drawn
        ]
    rows: list[Scored] = []
    settings = {"photos": arguments.photos, "texts": arguments.texts}
    for case in cases:
        folder = arguments.out / case.name.replace("/", "_")
        if (folder / "score.json").exists():
            rows.append(json.loads((folder / "score.json").read_text("utf-8")))
            continue
        try:
            row = evaluate(case, folder, settings)
        except Exception as error:  # a case that fails does not lose the others
            print(f"{case.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(row)
        verdict = "found" if row["found"] else "accused" if row["accused"] else row["missed"] or "not accused"
        told = f"{case.name} -> {row['role']} {row['with_mark']:.0%}/{row['without_mark']:.0%}: {verdict}"
        print(f"{len(rows)}/{len(cases)} {told} {row['seconds']}", flush=True)
        if arguments.table:
            write_table(rows, arguments.table)
    print(make_table(rows))


if __name__ == "__main__":
    main()
