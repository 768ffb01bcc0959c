"""Attention of the BiLSTM and of transformers on the same sentences, per head and block.

    python -m training.jain_wallace.beside --data DATA --models FOLDER --out beside.md

FOLDER has sst2-bilstm-additive-0 from train.py. By default beside it: demo/sentiment, and DATA/minilm-l6-sst2 if it is
there. The sentences are the first of the test part of SST-2.
"""

import argparse
from pathlib import Path

import torch
from training.jain_wallace.tasks import read_task

import whyformer as why
from whyformer_papers.jain_wallace_beside import BesideTable, measure_each_head
from whyformer_papers.jain_wallace_models import load_jain_wallace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with sst2/")
    parser.add_argument("--models", type=Path, required=True, help="what train.py wrote")
    parser.add_argument("--beside", nargs="*", help="names or folders of transformers")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--searched", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    models = {"BiLSTM": load_jain_wallace(settings.models / "sst2-bilstm-additive-0", settings.device)}
    mini = settings.data / "minilm-l6-sst2"
    for name in settings.beside or ["demo/sentiment", *([str(mini)] if mini.is_dir() else [])]:
        models[Path(name).name] = why.open(name, device=settings.device)
    sentences = read_task("sst2", settings.data)["test"][: settings.limit]
    table = BesideTable(
        {name: measure_each_head(model, sentences, settings.searched, settings.draws) for name, model in models.items()}
    )
    table.save(settings.out)
    print(table)


if __name__ == "__main__":
    main()
