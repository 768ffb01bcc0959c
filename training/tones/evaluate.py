"""The numbers of the listener's card: python training/tones/evaluate.py

Accuracy: are the words of a held-out sound the likeliest ones, each after those before it? Times: for each word, is the
frame with the highest score one of its tone, or next to it? By method, with 95 % bootstrap intervals over sounds,
beside chance (a frame, drawn) and position (tones at equal distances).
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from alignment import format_interval, read_arguments

import whyformer as why
from whyformer_papers.worlds import tones

SEED = 0
BESIDE = 1  # frames before and after a tone: the convolutions reach so far


def make_inputs(model: why.Model, tune: tones.Tune) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The sound with the words before each word, one row a word; and the ids of the words."""
    ids = model.tokenizer.convert_tokens_to_ids(list(tune.words))
    start = model.module.config.decoder_start_token_id
    rows = torch.full((len(ids), len(ids)), start)
    mask = torch.zeros_like(rows)
    for step in range(len(ids)):
        rows[step, 1 : step + 1] = torch.tensor(ids[:step])
        mask[step, : step + 1] = 1
    sound = torch.from_numpy(tune.features).expand(len(ids), -1, -1)
    return {"input_features": sound, "decoder_input_ids": rows, "decoder_attention_mask": mask}, ids


def is_hit(frame: int, times: tuple[int, int]) -> bool:
    return times[0] - BESIDE <= frame < times[1] + BESIDE


def find_hits(model: why.Model, tune: tones.Tune, method: str) -> float:
    inputs, ids = make_inputs(model, tune)
    frames = why.explain(model, inputs, method, target=ids).stream("source").scores.argmax(-1).tolist()
    return sum(map(is_hit, frames, tune.times)) / len(ids)


def find_position_hits(tune: tones.Tune) -> float:
    places = [round((i + 0.5) * tones.FRAMES / len(tune.words)) for i in range(len(tune.words))]
    return sum(map(is_hit, places, tune.times)) / len(places)


def is_heard(model: why.Model, tune: tones.Tune) -> bool:
    inputs, ids = make_inputs(model, tune)
    targets = why.explain(model, inputs, "chance").targets
    return [target.index for target in targets] == ids


def main() -> None:
    arguments = read_arguments(__doc__, "tones", 200, "sounds")
    model = why.open(arguments.model)
    tunes = tones.generate(arguments.count, SEED)
    heard = [tune for tune in tunes if is_heard(model, tune)]
    print(f"{len(heard)} of {len(tunes)} sounds written without a mistake")
    chosen = heard[: arguments.explained]
    reach = [[stop - start + 2 * BESIDE for start, stop in tune.times] for tune in chosen]
    chance = [sum(frames) / len(frames) / tones.FRAMES for frames in reach]
    print(f"times of {sum(len(tune.words) for tune in chosen)} words in {len(chosen)} sounds")
    print(f"chance: {format_interval(chance)}")
    print(f"position: {format_interval([find_position_hits(tune) for tune in chosen])}")
    for method in arguments.methods:
        hits = [find_hits(model, tune, method) for tune in chosen]
        print(f"{method}: {format_interval(hits)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
