"""Compare with the published SST results: python training/jain_wallace/table.py --data DATA/sst2 --models FOLDER --out
FOLDER

Audits every model that train.py wrote to FOLDER on the test sentences of SST-2 and writes `table.md`: our results with
intervals next to the published ones (BiLSTM, CNN and average encoders; Jain & Wallace, NAACL 2019, from the result
files of their repository). Resumable: finished audits are read, not run again. The BiLSTM with additive attention is
also compared with the same model trained with other seeds, if there are any.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from whyformer._audit import Audit, audit
from whyformer._audit.agreement import DELETED, GRADIENT
from whyformer.demo.jain_wallace import load_jain_wallace

# attention ~ gradient, attention ~ leave-one-out, gradient ~ leave-one-out: mean, spread, share significant; accuracy
PUBLISHED = {
    "bilstm-additive": ((0.35, 0.21, 0.49), (0.29, 0.19, 0.36), (0.66, 0.16, 0.91), 0.808),
    "bilstm-dot": ((0.07, 0.20, 0.09), (0.06, 0.20, 0.07), (0.71, 0.14, 0.94), 0.823),
    "cnn-additive": ((0.48, 0.17, 0.75), (0.35, 0.17, 0.51), (0.49, 0.18, 0.74), 0.823),
    "cnn-dot": ((0.24, 0.20, 0.25), (0.22, 0.19, 0.21), (0.64, 0.21, 0.82), 0.812),
    "average-additive": ((0.61, 0.20, 0.85), (0.62, 0.15, 0.88), (0.56, 0.25, 0.73), 0.807),
    "average-dot": ((0.35, 0.22, 0.50), (0.31, 0.18, 0.42), (0.66, 0.24, 0.82), 0.799),
}
PERMUTED = {
    "negative": (0.03, 0.05, 0.08, 0.11),
    "positive": (0.03, 0.04, 0.06, None),
}  # by largest weight, additive BiLSTM
SEARCHED = {"negative": (0.48, 0.49, 0.36), "positive": (0.49, 0.50, 0.40)}  # mean, median, share >= 0.525


def read_sentences(file: Path) -> list[tuple[str, int]]:
    rows = (line.rsplit("\t", 1) for line in file.read_text("utf-8").splitlines())
    return [(text, int(label)) for text, label in rows]


def format_ours(pair: dict[str, Any]) -> str:
    tau = pair["tau"]
    return f"{tau['mean']:.2f} [{tau['low']:.2f}, {tau['high']:.2f}] ± {tau['spread']:.2f} ({pair['significant']:.2f})"


def format_published(values: tuple[float, float, float]) -> str:
    return "{:.2f} ± {:.2f} ({:.2f})".format(*values)


def make_agreement_table(audits: dict[str, Audit]) -> list[str]:
    lines = [
        "| model | | attention ~ gradient | attention ~ leave-one-out | gradient ~ leave-one-out | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    pairs = (f"attention ~ {GRADIENT}", f"attention ~ {DELETED}", f"{GRADIENT} ~ {DELETED}")
    for name, audited in audits.items():
        kind = name.rsplit("-", 1)[0]
        found = audited.summary["attention"][audited.attention[0]]["agreement"]
        accuracy = audited.summary["answers"]["accuracy"]["mean"]
        lines.append(
            f"| {name.replace('-', ' ')} | ours | "
            + " | ".join(format_ours(found[pair]) for pair in pairs)
            + f" | {accuracy:.3f} |"
        )
        if kind in PUBLISHED:
            *published, accuracy = PUBLISHED[kind]
            lines.append(
                "| | published | "
                + " | ".join(format_published(values) for values in published)
                + f" | {accuracy:.3f} |"
            )
    return lines


def make_permutation_table(audited: Audit) -> list[str]:
    found = audited.summary["attention"][audited.attention[0]]["replacement"]["kinds"]["permutation"]
    bins = ("[0, 0.25)", "[0.25, 0.5)", "[0.5, 0.75)", "[0.75, 1)")
    lines = ["| predicted | | " + " | ".join(bins) + " |", "|---|---" + "|---" * len(bins) + "|"]
    for label, group in found["classes"].items():
        cells = []
        for name in bins:
            figure = group["bins"].get(name)
            if figure is None:
                cells.append("–")
            elif figure["low"] is None:
                cells.append(f"{figure['median']:.3f} (n = 1)")
            else:
                cells.append(f"{figure['median']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}] (n = {figure['n']})")
        lines.append(f"| {label} | ours | " + " | ".join(cells) + " |")
        published = ["–" if value is None else f"{value:.2f}" for value in PERMUTED[label]]
        lines.append("| | published | " + " | ".join(published) + " |")
    return lines


def make_search_table(audited: Audit) -> list[str]:
    found = audited.summary["attention"][audited.attention[0]]["adversarial"]
    lines = ["| predicted | | mean | median | at least 0.525 | of attainable | n |", "|---|---|---|---|---|---|---|"]
    for label, group in found["classes"].items():
        jsd, part = group["jsd"], group["of_attainable"]
        lines.append(
            f"| {label} | ours | {jsd['mean']:.2f} [{jsd['low']:.2f}, {jsd['high']:.2f}] | {jsd['median']:.2f} | "
            f"{group['many']:.0%} | {part['mean']:.0%} | {jsd['n']} |"
        )
        mean, median, many = SEARCHED[label]
        lines.append(f"| | published | {mean:.2f} | {median:.2f} | {many:.0%} | | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder sst2")
    parser.add_argument("--models", type=Path, required=True, help="what train.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--searched", type=int, default=300, help="number of sentences in the adversarial search")
    parser.add_argument("--limit", type=int, help="number of test sentences; by default all")
    parser.add_argument("--threads", type=int, default=1)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    audits = audit_models(settings)
    lines = make_tables(audits) + make_training_table(settings.models / "log.jsonl")
    (settings.out / "table.md").write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


def audit_models(settings: argparse.Namespace) -> dict[str, Audit]:
    """One audit per trained model, by the name of its folder."""
    test = read_sentences(settings.data / "test.tsv")
    audits: dict[str, Audit] = {}
    for folder in sorted(settings.models.glob("*-*-?")):
        kind = folder.name.rsplit("-", 1)[0]
        if kind not in PUBLISHED:
            continue
        is_main = folder.name == "bilstm-additive-0"
        others = sorted(p for p in settings.models.glob(f"{kind}-*") if p.name != folder.name) if is_main else []
        uniform = settings.models / f"{kind.split('-')[0]}-uniform-0"
        tests = ["agreement", "replacement", "shape", "baseline", *(["adversarial", "diagnostic"] if is_main else [])]
        audits[folder.name] = audit(
            load_jain_wallace(folder), test, "last", tests=[*tests, *(["seeds"] if others else [])], preset="released",
            search_limit=settings.searched, checkpoints=[load_jain_wallace(p) for p in others], limit=settings.limit,
            baseline=load_jain_wallace(uniform) if uniform.is_dir() else None,
            training=read_sentences(settings.data / "train.tsv") if is_main else None, out=settings.out / folder.name,
        )  # fmt: skip
        print(audits[folder.name], flush=True)
    return audits


def make_tables(audits: dict[str, Audit]) -> list[str]:
    heading = "## Agreement (Kendall's tau, mean [95 %] ± spread (share significant))"
    lines = [heading, "", *make_agreement_table(audits)]
    main = next((audited for name, audited in audits.items() if name.startswith("bilstm-additive")), None)
    if main is not None:
        lines += ["", "## Permuted: median TVD by the largest weight, BiLSTM with additive attention", ""]
        lines += make_permutation_table(main)
        lines += ["", "## Other attention with the same answer (JSD), BiLSTM with additive attention", ""]
        lines += make_search_table(main)
    return lines


def make_training_table(log: Path) -> list[str]:
    """Accuracies of the trained models, from the log of train.py."""
    if not log.exists():
        return []
    lines = ["", "## Trained", "", "| encoder | attention | seed | dev | test |", "|---|---|---|---|---|"]
    for line in log.read_text("utf-8").splitlines():
        row = json.loads(line)
        lines.append(
            f"| {row['encoder']} | {row['attention']} | {row['seed']} | {row['dev']:.3f} | {row['test']:.3f} |"
        )
    return lines


if __name__ == "__main__":
    main()
