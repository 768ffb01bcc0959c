"""Train the tiny LLaVA of the world of questions: python training/questions/train.py --out FOLDER

The model reads the image, then the question, and predicts one word. For the first half of the training, every patch is
also asked what it shows, by a head that is not kept. About six minutes on one GPU.
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[2] / "papers" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from recipe import Average, Schedule, adamw, begin_training, device, save, save_processor, save_tokenizer, take_step

from whyformer_papers.worlds import captions, questions

SPECIAL = ("<pad>", "<unk>", "<s>", "<image>")
PAD, _, START, IMAGE = range(4)
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"height": questions.SIZE, "width": questions.SIZE},
    "do_center_crop": False,
    "do_convert_rgb": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
TRAINING_SEED = 20_000_000  # times the seed of the config: far from those anybody would type


def make_tokenizer() -> Tokenizer:
    """<s> and one token a word; a word outside the world is <unk>."""
    ids = {word: i for i, word in enumerate((*SPECIAL, *questions.VOCABULARY))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", START)])
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def make_model(config: dict, vocabulary: int) -> LlavaForConditionalGeneration:
    vision = CLIPVisionConfig(
        hidden_size=config["width"],
        intermediate_size=4 * config["width"],
        num_hidden_layers=config["vision_blocks"],
        num_attention_heads=config["heads"],
        image_size=questions.SIZE,
        patch_size=config["patch"],
        projection_dim=config["width"],
    )
    text = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=config["width"],
        intermediate_size=config["inner"],
        num_hidden_layers=config["blocks"],
        num_attention_heads=config["heads"],
        num_key_value_heads=config["heads"],
        max_position_embeddings=config["positions"],
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=None,
    )
    whole = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=IMAGE,
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        image_seq_length=(questions.SIZE // config["patch"]) ** 2,
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(whole).to(device())


def name_patches(scenes: captions.CaptionedScenes, patch: int) -> Tensor:
    """[image patch]: the object that covers most of each patch, or the last class if none covers a fifth."""
    cells = questions.SIZE // patch
    share = torch.from_numpy(scenes.masks).reshape(len(scenes), 2, cells, patch, cells, patch).float().mean((3, 5))
    most, which = share.max(1)
    labels = torch.from_numpy(scenes.labels)[:, :, None, None].expand(share.shape).gather(1, which[:, None])[:, 0]
    return torch.where(most > 0.2, labels, len(captions.NAMES)).flatten(1)


def write_questions(labels: Tensor, tokenizer: Tokenizer, patches: int, rng: random.Random) -> tuple[Tensor, ...]:
    """Token ids, padded on the right, their mask, the last word of each, and the id of the answer."""
    asked = [questions.ask(row, rng) for row in labels.numpy()]
    rows = [[START, *[IMAGE] * patches, *e.ids[1:]] for e in tokenizer.encode_batch([one.text for one in asked])]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    ends = torch.tensor([len(row) - 1 for row in rows])
    answers = torch.tensor([tokenizer.token_to_id(one.answer) for one in asked])
    return ids, (ids != PAD).long(), ends, answers


def main() -> None:
    arguments, config, log = begin_training(__doc__, Path(__file__).with_name("config.toml"))
    rng, where = random.Random(config["seed"]), device()
    torch.set_float32_matmul_precision("high")
    scenes = captions.generate(config["images"], TRAINING_SEED * config["seed"])
    images, labels = torch.from_numpy(scenes.images).to(where), torch.from_numpy(scenes.labels)
    shown = name_patches(scenes, config["patch"]).to(where)
    schedule = Schedule(config["peak"], config["warmup"], config["steps"], config["seconds"])
    tokenizer = make_tokenizer()
    model = make_model(config, tokenizer.get_vocab_size())
    naming = nn.Linear(config["width"], len(captions.NAMES) + 1).to(where)
    both = nn.ModuleList([model, naming])
    log.write(images=len(images), parameters=sum(p.numel() for p in model.parameters()))
    optimizer, average = adamw(both, config["weight_decay"]), Average(model, config["average"])
    model.train()
    while schedule.advance(optimizer):
        chosen = torch.randint(len(images), (config["batch"],))
        ids, mask, ends, answers = (
            part.to(where) for part in write_questions(labels[chosen], tokenizer, shown.size(1), rng)
        )
        pixels = images[chosen.to(where)].permute(0, 3, 1, 2).float() / 127.5 - 1
        made = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
        logits = made.logits[torch.arange(len(ends), device=where), ends]
        states = torch.stack(list(made.image_hidden_states)).view(len(ends), shown.size(1), -1)
        loss = cross_entropy(logits, answers)
        named = cross_entropy(naming(states).flatten(0, 1), shown[chosen.to(where)].flatten())
        weight = config["patches"] * max(0.0, 1 - 2 * schedule.progress)
        take_step(loss + weight * named, both, optimizer, average)
        if schedule.step % 200 == 0:
            right = (logits.argmax(-1) == answers).float().mean()
            log.write(step=schedule.step, seconds=schedule.elapsed, loss=loss, patches=named, right=right)
        if schedule.step % 3000 == 0:
            save_all(model, tokenizer, config, arguments.out)  # in case that the rest is lost
    average.load_into(model)
    save_all(model, tokenizer, config, arguments.out)
    log.write(done=True, steps=schedule.step, seconds=schedule.elapsed)


def save_all(model: LlavaForConditionalGeneration, tokenizer: Tokenizer, config: dict, folder: Path) -> None:
    save(model, folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    settings = {
        "model_max_length": config["positions"],
        "model_input_names": ["input_ids", "attention_mask"],
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "extra_special_tokens": {"image_token": "<image>"},
    }
    save_tokenizer(tokenizer, folder, **settings)
    save_processor(PROCESSOR, folder)
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": config["patch"],
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": "<image>",
    }
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
