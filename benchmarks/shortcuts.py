"""How many shortcuts does the bulk summary find, and how many honest models does it accuse?

    python benchmarks/shortcuts.py [--out FOLDER] [--seeds 20 21 22 23 24] [--kinds corner word]
                                   [--photos oxford_pets] [--texts sst2] [--reviews imdb] [--jobs 4]
                                   [--table docs/data/shortcuts.json]
    python benchmarks/shortcuts.py --publish docs/data/shortcuts.json

Makes worlds of images and texts with planted marks, trains a small model on each, explains 240 new items with `bulk`,
and scores what `summarise_bulk` says. A model is *used* if it loses at least 10 points of accuracy on marked items when
the mark is not there; a mark is *found* if one of the first three findings is called suspicious and holds half of the
marked items with at least 80 % precision; a model that is clean or ignores its mark is *accused* if any finding is
called suspicious. Limits of the summary were chosen on seeds 0 to 4, without captions and names. The table of the docs
is planned from all 310 cases of seeds 20 to 24, in the order of `list_cases`: seed by seed, the second share of a kind
after all others, so that a run that is stopped has all kinds and worlds of its first seeds.

A finished case is kept in FOLDER/<case>/score.json and not computed again (`--again` explains and scores anew). An
image model takes one to two minutes on one CPU thread, a text model 15 seconds; with a GPU, image models are trained
together.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from shortcut_cases import image_cases, text_cases  # noqa: E402
from shortcut_cases.cases import KEPT_OUT, LOCAL_KINDS, SHARES, Case, list_cases  # noqa: E402
from shortcut_cases.scores import name_role, score_findings  # noqa: E402

from whyformer._summary.track_record import FILE, Blameless, Marks, TrackRecord, read_track_record  # noqa: E402

METHOD = "attnlrp"
AHEAD = 60  # cases: about a seed; texts, which need no training before, get no further ahead of images
PAGE = ROOT / "docs/bulk-summary.md"
BEGIN, END = "<!-- table of benchmarks/shortcuts.py -->", "<!-- end of the table -->"
Scored = dict[str, object]


def evaluate(case: Case, folder: Path, settings: dict[str, str | None]) -> Scored:
    """Explain and summarise the shown items of one case; texts are trained here, images before."""
    import whyformer as why

    torch.set_num_threads(1)
    if case.world in text_cases.WORLDS:
        text_cases.prepare(case, folder, {"sst2": settings.get("texts"), "imdb": settings.get("reviews")})
    elif not (folder / "images").exists():
        image_cases.save_images(case, folder.parent, settings["photos"])
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    start = time.process_time()
    shutil.rmtree(folder / "run", ignore_errors=True)
    data = folder / "texts.csv" if (folder / "texts.csv").exists() else folder / "images"
    # next to a GPU, bulk starts processes that load images, which cost more than 240 items
    why.bulk(folder / "model", data, METHOD, out=folder / "run", workers=1, device="cpu")
    explained = time.process_time()
    model = why.open(folder / "model", device=settings.get("device") or "cpu")
    found = why.summarise_bulk(folder / "run", model)
    score = score_findings(found.findings, truth["marks"])
    found.save(folder / "summary.json")
    row = {
        **asdict(case), "role": name_role(case.role, truth["with_mark"], truth["without_mark"]),
        "planned": case.role, "accuracy": truth["accuracy"], "with_mark": truth["with_mark"],
        "without_mark": truth["without_mark"], "marked": sum(map(len, truth["marks"].values())), **asdict(score),
        "seconds": [round(explained - start, 1), round(time.process_time() - explained, 1)],
    }  # fmt: skip
    (folder / "score.json").write_text(json.dumps(row) + "\n", "utf-8")
    return row


def run_cases(cases: Sequence[Case], out: Path, settings: dict[str, str | None], jobs: int) -> Iterator[Scored]:
    """Score the cases in their order, as soon as they are ready: a thread trains the image models, group by group."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    groups = image_cases.group([case for case in cases if case.world not in text_cases.WORLDS])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool, ThreadPoolExecutor(1) as trainer:
        worlds = image_cases.make_worlds(groups, out, settings["photos"], pool)
        trained: dict[Case, Future[None]] = {}
        for group in groups:
            trained |= dict.fromkeys(group, trainer.submit(image_cases.prepare, group, out, worlds, device))
        waiting, running = list(cases), dict[Future[Scored], Case]()
        while waiting or running:
            ready = [case for case in waiting[:AHEAD] if case not in trained or trained[case].done()]
            for case in ready[: 2 * jobs - len(running)]:
                running[pool.submit(evaluate, case, out / case.name, settings)] = case
                waiting.remove(case)
            done, _ = wait(running or [trained[waiting[0]]], timeout=1, return_when=FIRST_COMPLETED)
            yield from collect([future for future in running if future in done], running)


def collect(done: Iterable[Future[Scored]], futures: dict[Future[Scored], Case]) -> Iterator[Scored]:
    """The scores of these cases, which are then forgotten; a case that fails does not lose the others."""
    for future in done:
        case = futures.pop(future)
        try:
            yield future.result()
        except Exception as error:
            print(f"{case.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def write_table(rows: Sequence[Scored], file: Path) -> None:
    """All rows as one JSON file, one row a line."""
    rows = sorted(rows, key=lambda row: (row["world"], row["kind"], row["share"], row["seed"], row["planned"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", "utf-8")


def count_rows(rows: Sequence[Scored]) -> TrackRecord:
    """By kind how many marks were used and found; how many models use no mark, and how many of them were accused."""
    used: dict[str, Marks] = {}
    for kind in SHARES:
        own = [row for row in rows if row["role"] == "used" and row["kind"] == kind]
        if own:
            used[kind] = {"used": len(own), "found": sum(bool(row["found"]) for row in own)}
    return {
        "local": {kind: count for kind, count in used.items() if kind in LOCAL_KINDS},
        "apart": {kind: count for kind, count in used.items() if kind not in LOCAL_KINDS},
        "clean": count_accused(rows, "clean"),
        "ignoring": count_accused(rows, "ignoring"),
        "outside": read_track_record()["outside"],  # of marks that others drew; not measured here
    }


def count_accused(rows: Sequence[Scored], role: str) -> Blameless:
    own = [bool(row["accused"]) for row in rows if row["role"] == role]
    return {"models": len(own), "accused": sum(own)}


def make_table(rows: Sequence[Scored]) -> str:
    """Markdown: by kind, what was used, found and missed; then the models that should not be accused."""
    lines = ["| kind | used | found | accuracy with / without | missed |", "|---|---|---|---|---|"]
    record = count_rows(rows)
    for kind, count in (record["local"] | record["apart"]).items():
        own = [row for row in rows if row["kind"] == kind and row["role"] == "used"]
        means = [sum(float(str(row[name])) for row in own) / len(own) for name in ("with_mark", "without_mark")]
        note = " (kept out)" if kind in KEPT_OUT else "" if kind in LOCAL_KINDS else " (apart)"
        accuracy = f"{means[0]:.0%} / {means[1]:.0%}"
        lines.append(f"| {kind}{note} | {count['used']} | {count['found']} | {accuracy} | {describe_missed(own)} |")
    local = record["local"].values()
    used, found = sum(one["used"] for one in local), sum(one["found"] for one in local)
    lines += [f"| **all but those apart** | {used} | {found} | | |", "", "| models | accused |", "|---|---|"]
    lines.append(f"| {record['clean']['models']} clean | {record['clean']['accused']} |")
    lines.append(f"| {record['ignoring']['models']} that ignore their mark | {record['ignoring']['accused']} |")
    return "\n".join([*lines, "", *tabulate_worlds(rows)])


def tabulate_worlds(rows: Sequence[Scored]) -> Iterator[str]:
    """The same by world, without the kinds apart."""
    yield "| world | used | found | clean or ignoring | accused |"
    yield "|---|---|---|---|---|"
    for world in dict.fromkeys(str(row["world"]) for row in rows):
        own = [row for row in rows if row["world"] == world]
        used = [bool(row["found"]) for row in own if row["role"] == "used" and row["kind"] in LOCAL_KINDS]
        blameless = [bool(row["accused"]) for row in own if row["role"] in ("clean", "ignoring")]
        yield f"| {world} | {len(used)} | {sum(used)} | {len(blameless)} | {sum(blameless)} |"


def describe_missed(rows: Sequence[Scored]) -> str:
    missed = Counter(f"{row['world']}: {row['missed']}" for row in rows if not row["found"])
    return "; ".join(f"{why} ({count})" if count > 1 else why for why, count in sorted(missed.items()))


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
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 21, 22, 23, 24])
    parser.add_argument("--kinds", nargs="+", choices=sorted(SHARES), help="by default all; clean twins always")
    parser.add_argument(
        "--worlds", nargs="+", help="of shapes, creatures, pets, reviews, sst2, imdb; by default all present"
    )
    parser.add_argument("--photos", help="a folder in the layout of oxford_pets")
    parser.add_argument("--texts", help="a folder in the layout of sst2")
    parser.add_argument("--reviews", help="a folder in the layout of imdb")
    parser.add_argument("--device", help="where summaries run the models; by default a GPU if there is one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that explain")
    parser.add_argument("--again", action="store_true", help="explain and score anew; trained models are kept")
    parser.add_argument("--table", type=Path, help="write all rows as JSON")
    parser.add_argument("--publish", type=Path, help="put the table of this file into docs and package")
    arguments = parser.parse_args()
    if arguments.publish:
        publish(json.loads(arguments.publish.read_text("utf-8")))
        return
    worlds = ["shapes", "creatures", "reviews"]
    worlds += ["pets"] * bool(arguments.photos) + ["sst2"] * bool(arguments.texts)
    worlds += ["imdb"] * bool(arguments.reviews)
    cases = list_cases(arguments.seeds, arguments.kinds, arguments.worlds or worlds)
    rows, missing = [], []
    for case in cases:
        score = arguments.out / case.name / "score.json"
        if score.exists() and not arguments.again:
            rows.append(json.loads(score.read_text("utf-8")))
        else:
            missing.append(case)
    print(f"{len(cases)} cases, {len(rows)} of them done", flush=True)
    start = time.monotonic()
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings = {
        "photos": arguments.photos, "texts": arguments.texts, "reviews": arguments.reviews, "device": device
    }  # fmt: skip
    for row in run_cases(missing, arguments.out, settings, arguments.jobs):
        rows.append(row)
        verdict = "found" if row["found"] else "accused" if row["accused"] else row["missed"] or "not accused"
        print(f"{len(rows)}/{len(cases)} {time.monotonic() - start:.0f} s {row['world']}-{row['kind']}-{row['share']}-"
              f"{row['seed']} {row['planned']} -> {row['role']} {row['with_mark']:.0%}/{row['without_mark']:.0%}: "
              f"{verdict} {row['seconds']}", flush=True)  # fmt: skip
        if arguments.table:
            write_table(rows, arguments.table)
    if arguments.table:
        write_table(rows, arguments.table)
    if rows:
        print(make_table(rows))


if __name__ == "__main__":
    main()
