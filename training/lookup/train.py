"""Train a Mamba, which has no attention, to look up values by their keys, and measure which token methods point at.

    python training/lookup/train.py --out DIR [--steps 3000] [--device cuda]     about 2 minutes on one H200
    python training/lookup/train.py --out DIR --evaluate [--texts 200]           the table, on the model in DIR

A text is six pairs of a key and a value in random order, then a key; the answer is its value. The evidence is therefore
known: the pair of that key. A hit is the highest score among the tokens before the question on either token of the
pair. Beside it: chance, and the best fixed position (the same pair of every text).
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM

import whyformer as why

KEYS, VALUES, PAIRS = 16, 16, 6
METHODS = (None, "attnlrp", "gradient_x_input", "integrated_gradients", "leave_one_out", "chance")


def draw_texts(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """[count, 2 * PAIRS] pairs, and [count, 2 * PAIRS] all keys in another order, each followed by its value."""
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = KEYS + torch.randint(VALUES, (count, PAIRS), generator=generator)
    order = torch.rand(count, PAIRS, generator=generator).argsort(1)
    pairs = torch.stack([keys, values], -1)
    asked = pairs.gather(1, order[..., None].expand(-1, -1, 2))
    return pairs.flatten(1), asked.flatten(1)


def train(out: Path, steps: int, device: str, seed: int) -> None:
    torch.manual_seed(seed)
    config = MambaConfig(vocab_size=KEYS + VALUES, hidden_size=64, num_hidden_layers=2, state_size=16, use_cache=False)
    model = MambaForCausalLM(config).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(1000 * seed + 1)
    for step in range(steps):
        pairs, asked = draw_texts(256, generator)
        ids = torch.cat([pairs, asked], 1).to(device)
        logits = model(ids).logits[:, 2 * PAIRS : -1 : 2]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 2 * PAIRS + 1 :: 2].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
            model.save_pretrained(out)


def evaluate(folder: Path, count: int) -> None:
    model = MambaForCausalLM.from_pretrained(folder).eval()
    pairs, asked = draw_texts(count, torch.Generator().manual_seed(7))
    ids, answers = torch.cat([pairs, asked[:, :1]], 1), asked[:, 1]
    with torch.no_grad():
        predicted = model(ids).logits[:, -1].argmax(-1)
    ids, answers = ids[predicted == answers], answers[predicted == answers]
    print(f"right: {len(ids)} of {count}; below, of these")
    if not len(ids):
        return
    of_pair = ids[:, : 2 * PAIRS : 2] == ids[:, -1:]  # [text pair]
    print(f"{'chance':24} {1 / PAIRS:.2f}")
    print(f"{'best position':24} {float(of_pair.float().mean(0).max()):.2f}")
    for method in METHODS:
        e = why.explain(model, {"input_ids": ids}, method, target=answers.tolist())
        first = e.scores[:, : 2 * PAIRS].argmax(1) // 2
        hits = of_pair.gather(1, first[:, None].cpu()).float().mean()
        print(f"{method or f'default ({e.method})':24} {float(hits):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--evaluate", action="store_true")
    arguments = parser.parse_args()
    if not arguments.evaluate:
        train(arguments.out, arguments.steps, arguments.device, arguments.seed)
    evaluate(arguments.out, arguments.texts)


if __name__ == "__main__":
    main()
