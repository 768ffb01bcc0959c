"""Models with an encoder and a decoder: source and prefix as one sequence, by hand, by controls, by released rules."""

import copy
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from tiny_seq2seq import BART, IDS, MAKERS, WORDS, WRITERS, make_seq2seq, make_tokenizer
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import InputError, MethodError, UnsupportedModel
from whyformer.methods.generic_attention import generic_attention

GOLDEN = Path(__file__).parents[1] / "golden" / "authors" / "bimodal"
SOURCE, PREFIX = torch.tensor([[4, 5, 6, 7, 8, 1]]), torch.tensor([[0, 14, 15, 16]])
INPUTS = {"input_ids": SOURCE, "decoder_input_ids": PREFIX}
OVER_BOTH = ("libragrad", "attnlrp", "gradient_x_input", "leave_one_out", "generic_attention", "integrated_gradients")
TEXTS = ["the red house is big", "a cat"]


def explain(module, method, **settings):
    return why.explain(why.open(module), INPUTS, method, **settings)


def run(module, **changes):
    """The logits after the last token of the prefix."""
    with torch.no_grad():
        return module(**INPUTS | changes).logits[0, -1]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("method", [*OVER_BOTH, "rollout", "raw_attention", "occlusion", "lrp"])
def test_every_family_scores_source_and_prefix(kind, method):
    module = make_seq2seq(kind)
    before = copy.deepcopy(module.state_dict())
    e = explain(module, method)
    assert e.streams == {"source": slice(0, 6), "prefix": slice(6, 10)} and e.scores.shape == (1, 10)
    assert e.targets[0].score == pytest.approx(float(run(module).max()))
    assert bool(e.scores[:, e.streams["source"]].any())
    assert all(torch.equal(before[name], weight) for name, weight in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_relevance_is_conserved_over_both_streams():
    """A T5 has no biases: all of the logit is at the tokens."""
    e = explain(make_seq2seq("t5"), "libragrad")
    assert float(e.scores.sum()) == pytest.approx(e.targets[0].score, rel=1e-10)
    assert min(float(e.stream(name).scores.abs().sum()) for name in e.streams) > 1e-3


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("method", ["libragrad", "attnlrp", "cp_lrp"])
def test_what_is_not_at_the_tokens_was_absorbed(kind, method):
    """Biases and softmaxes take what does not arrive, and it is known how much."""
    health = explain(make_seq2seq(kind), method, health=True).health
    assert float(health.error.max()) < 1e-9


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_gradient_x_input_by_hand(kind):
    module = make_seq2seq(kind)
    table = module.get_input_embeddings()
    words = [table(ids).detach().requires_grad_() for ids in (SOURCE, PREFIX)]
    logits = module(inputs_embeds=words[0], decoder_inputs_embeds=words[1]).logits[0, -1]
    slopes = torch.autograd.grad(logits.max(), words)
    expected = torch.cat([(word * slope).sum(-1) for word, slope in zip(words, slopes, strict=True)], 1)
    assert_close(explain(module, "gradient_x_input").scores, expected.detach())


def test_integrated_gradients_add_up_to_the_difference_of_the_ends():
    module = make_seq2seq("marian")
    e = explain(module, "integrated_gradients", steps=400, baseline="zero")
    table = module.get_input_embeddings()
    words = [table(ids).detach().clone() for ids in (SOURCE, PREFIX)]
    words[0][:, :-1] = 0  # </s> and the start are special, and stay
    words[1][:, 1:] = 0
    with torch.no_grad():
        end = module(inputs_embeds=words[0], decoder_inputs_embeds=words[1]).logits[0, -1, run(module).argmax()]
    assert float(e.scores.sum()) == pytest.approx(float(run(module).max() - end), rel=2e-3)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_leave_one_out_by_hand(kind):
    module = make_seq2seq(kind)
    scores = explain(module, "leave_one_out", fill="pad").scores[0]
    whole = run(module)
    best = int(whole.argmax())
    for place in range(10):
        masks = torch.ones(1, 10, dtype=torch.long)
        masks[0, place] = 0
        given = {"attention_mask": masks[:, :6], "decoder_attention_mask": masks[:, 6:]}
        with torch.no_grad():
            left = module(**INPUTS, **given).logits[0, -2 if place == 9 else -1]  # after the last token that is left
        is_special = place in (5, 6)
        assert_close(scores[place], torch.zeros(()).double() if is_special else whole[best] - left[best])


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("method", OVER_BOTH)
def test_without_cross_attention_the_source_gets_nothing(kind, method):
    module = make_seq2seq(kind)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "EncDecAttention.o" in name or "encoder_attn.out_proj.weight" in name:
                weight.zero_()
    e = explain(module, method)
    assert not bool(e.stream("source").scores.any())
    assert bool(e.stream("prefix").scores.any())


@pytest.mark.parametrize("method", OVER_BOTH)
def test_scores_move_with_the_tokens_of_the_source(method):
    """Without its table of distances, the encoder of a T5 does not know the order of its tokens."""
    module = make_seq2seq("t5")
    with torch.no_grad():
        module.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.zero_()
    order = torch.tensor([3, 0, 4, 1, 2, 5])
    model = why.open(module)
    one = why.explain(model, INPUTS, method).stream("source").scores
    other = why.explain(model, INPUTS | {"input_ids": SOURCE[:, order]}, method).stream("source").scores
    assert_close(other, one[:, order], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("stream", "token", "method"),
    [("source", 6, "libragrad"), ("source", 6, "leave_one_out"), ("prefix", 16, "leave_one_out")],
)
def test_a_token_ten_times_as_large_is_first_in_its_stream(stream, token, method):
    module = make_seq2seq("marian")
    with torch.no_grad():
        module.get_input_embeddings().weight[token] *= 10
    scores = explain(module, method).stream(stream).scores[0].abs()
    assert int(scores.argmax()) == (SOURCE if stream == "source" else PREFIX)[0].tolist().index(token)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("method", ["libragrad", "leave_one_out", "generic_attention"])
def test_a_batch_gives_what_single_runs_give(kind, method):
    model = why.open(make_seq2seq(kind), tokenizer=make_tokenizer())
    together = why.explain(model, TEXTS, method)
    for number, text in enumerate(TEXTS):
        alone = why.explain(model, text, method)
        real = [i for i, padding in enumerate(together.tokens[number].padding) if not padding]
        assert_close(together.scores[number, real], alone.scores[0])
        assert not bool(together.scores[number].index_fill(0, torch.tensor(real), 0).any())


@pytest.mark.parametrize("kind", ["bart, classes", "t5, classes"])
def test_a_head_that_classifies_reads_the_source_again(kind):
    module, tokenizer = make_seq2seq(kind), make_tokenizer()
    e = why.explain(why.open(module, tokenizer=tokenizer), TEXTS[0], target=2)
    with torch.no_grad():
        own = module(**tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)).logits[0, 2]
    assert e.targets[0].score == pytest.approx(float(own))
    source, prefix = (e.tokens[0].pieces[part] for part in e.streams.values())
    assert prefix[1:] == source[:-1]


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_generic_attention_equals_the_released_rules(kind):
    """R_q_i and R_q_q of the authors' code, from the attention and gradients of a model (golden/authors/bimodal)."""
    saved = load_file(GOLDEN / f"{kind}.safetensors")
    places = {"encoder": (0, 0), "own": (5, 5), "cross": (5, 0)}
    names = [name for name in saved if name.startswith("encoder") and not name.endswith("grad")]
    depth = sum(name.startswith("own") and not name.endswith("grad") for name in saved)
    names = [*sorted(names), *(f"{part}.{i}" for i in range(depth) for part in ("own", "cross"))]

    def join(name, of):
        row, column = places[of.split(".")[0]]
        whole = torch.zeros(1, 4, 9, 9, dtype=torch.double)
        part = saved[name]
        whole[..., row : row + part.size(-2), column : column + part.size(-1)] = part
        return whole

    readout, mask = torch.eye(9, dtype=torch.double)[8:], torch.ones(1, 9, dtype=torch.bool)
    attention, gradient = ([join(f"{name}{end}", name) for name in names] for end in ("", ".grad"))
    scores = generic_attention(attention, gradient, readout, mask, (5, 4))
    assert_close(scores[0], torch.cat([saved["R_q_i"][-1], saved["R_q_q"][-1]]), rtol=1e-12, atol=1e-14)


def test_rollout_is_the_product_of_all_attention():
    """Row by row: what a layer does not change stays, the rest is half attention and half skip connection."""
    module = make_seq2seq("bart")
    capture = why.record(why.open(module), why.open(module).encode(INPUTS), keep={"attention"})
    product = torch.eye(10, dtype=torch.double)
    for layer in capture["attention"]:
        mean = layer.mean(1)[0]
        takes_part = mean.sum(-1, keepdim=True) > 0
        product = torch.where(takes_part, (mean + torch.eye(10)) / 2, torch.eye(10)) @ product
    assert_close(explain(module, "rollout").scores[0], product[-1])


def test_attcat_sums_over_what_each_attention_reads():
    """By hand: gradient times the states that enter a block, or that the encoder returns, weighted by attention."""
    module, states = make_seq2seq("bart"), []
    module.set_attn_implementation("eager")

    def keep(_module, args, given):
        states.append(given.get("hidden_states", args[0] if args else None))
        states[-1].retain_grad()

    layers = [*module.model.encoder.layers, *module.model.decoder.layers]
    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    returned = module(**INPUTS, output_attentions=True)
    memory = returned.encoder_last_hidden_state
    memory.retain_grad()
    returned.logits[0, -1].max().backward()
    [handle.remove() for handle in handles]
    activation = lambda state: (state * state.grad).sum(-1)[0]  # noqa: E731
    received = lambda attention: attention[0].mean(0).mean(0)  # noqa: E731
    source = sum(activation(s) * received(a) for s, a in zip(states, returned.encoder_attentions, strict=False))
    source = source + sum(activation(memory) * received(a) for a in returned.cross_attentions)
    prefix = sum(activation(s) * received(a) for s, a in zip(states[2:], returned.decoder_attentions, strict=True))
    module.zero_grad(set_to_none=True)
    assert_close(explain(module, "attcat").scores[0], torch.cat([source, prefix]).detach())


def test_the_prefix_of_a_classifier_is_what_its_decoder_is_given():
    """The decoder of an MBart begins with the last token of the source, a language."""
    torch.manual_seed(0)
    module = hf.MBartForSequenceClassification(hf.MBartConfig(**BART, num_labels=3)).eval().double()
    e = why.explain(why.open(module), {"input_ids": SOURCE}, target=1)
    assert [int(piece) for piece in e.tokens[0].pieces[6:]] == [1, 4, 5, 6, 7, 8]
    assert e.targets[0].score == pytest.approx(module(SOURCE).logits[0, 1].item())


@pytest.mark.parametrize("method", ["cat", "decompx", "alti", "value_zeroing", "redistribution", "legrad", "pa_lrp"])
def test_what_has_no_meaning_for_two_streams_says_so(method):
    with pytest.raises(UnsupportedModel, match="encoder and a decoder"):
        explain(make_seq2seq("t5"), method)


def test_streams_that_do_not_fit_are_refused():
    model = why.open(make_seq2seq("t5"), tokenizer=make_tokenizer())
    with pytest.raises(InputError, match=r"decoder_input_ids.*Pass \[batch, token\]"):
        why.explain(model, {"input_ids": SOURCE, "decoder_input_ids": PREFIX.expand(2, -1)})
    with pytest.raises(InputError, match="reads the whole source"):
        why.explain(model, "the red house", windows=True)
    with pytest.raises(MethodError, match="Use 'pad'"):
        why.explain(model, INPUTS, "leave_one_out", fill="delete")
    with pytest.raises(InputError, match=r"There is no stream 'image'. There are: source, prefix"):
        why.explain(model, INPUTS).stream("image")


# --- sound ------------------------------------------------------------------------------------------------------------


def make_whisper():
    torch.manual_seed(0)
    sizes = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = hf.WhisperConfig(
        vocab_size=40, num_mel_bins=8, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=20,
        max_target_positions=16, decoder_start_token_id=1, pad_token_id=0, bos_token_id=2, eos_token_id=3, **sizes,
    )  # fmt: skip
    module = hf.WhisperForConditionalGeneration(config).eval().double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return module


SOUND = torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(1)).double()
HEARD = {"input_features": SOUND, "decoder_input_ids": torch.tensor([[1, 5, 6], [1, 7, 8]])}


@pytest.mark.parametrize("method", [*OVER_BOTH, "rollout", "occlusion"])
def test_frames_of_a_sound_and_words_are_scored(method):
    module = make_whisper()
    with torch.no_grad():
        own = module(**HEARD).logits[:, -1].amax(-1)
    e = why.explain(why.open(module), HEARD, method)
    assert e.streams == {"source": slice(0, 20), "prefix": slice(20, 23)}
    assert e.tokens[0].pieces[:2] == ("0.00s", "0.02s")
    assert_close(torch.tensor([target.score for target in e.targets]).double(), own)
    alone = why.explain(why.open(module), {name: tensor[1:] for name, tensor in HEARD.items()}, method)
    assert_close(e.scores[1:], alone.scores)
    assert bool(e.stream("source").scores.any(-1).all())


def test_a_frame_is_scored_by_hand():
    """Gradient times what the convolutions make of the sound, through the model's own code."""
    module, kept = make_whisper(), []
    module.model.encoder.conv2.register_forward_hook(lambda _, __, out: kept.append(out))
    features = SOUND.clone().requires_grad_()  # so that there is a graph
    score = module(input_features=features, decoder_input_ids=HEARD["decoder_input_ids"]).logits[0, -1].max()
    state = torch.nn.functional.gelu(kept[0].detach()).requires_grad_()
    (slope,) = torch.autograd.grad(score, kept[0])
    bend = torch.autograd.functional.jvp(torch.nn.functional.gelu, kept[0].detach(), torch.ones_like(kept[0]))[1]
    expected = (slope / bend * state).sum(1)[0].detach()
    plain = make_whisper()
    found = why.explain(plain, {name: tensor[:1] for name, tensor in HEARD.items()}, "gradient_x_input")
    assert_close(found.stream("source").scores[0], expected, rtol=1e-5, atol=1e-8)


def test_sounds_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"needs \[batch, 8, 40\], as its feature extractor makes them"):
        why.explain(make_whisper(), {"input_features": SOUND[0]})


def test_a_frame_that_is_left_out_becomes_the_mean():
    module = make_whisper()
    given = {name: tensor[:1] for name, tensor in HEARD.items()}
    found = why.explain(module, given, "leave_one_out").stream("source").scores[0]

    def replace_frame(_, __, out):
        state = torch.nn.functional.gelu(out)
        state[..., 3] = state.mean(-1)
        return state

    with torch.no_grad():
        whole = module(**given).logits[0, -1]
        module.model.encoder.conv2.register_forward_hook(replace_frame)
        changed = run_without_second_gelu(module, given)
    assert_close(found[3], whole.max() - changed[whole.argmax()])


def run_without_second_gelu(module, given):
    """The logits where what the second convolution returns is the state itself."""
    encoder = module.model.encoder
    state = encoder.conv2(torch.nn.functional.gelu(encoder.conv1(given["input_features"]))).transpose(1, 2)
    state = state + encoder.embed_positions.weight
    for layer in encoder.layers:
        state = layer(state, None)
        state = state if isinstance(state, torch.Tensor) else state[0]
    outputs = (encoder.layer_norm(state),)
    return module(encoder_outputs=outputs, decoder_input_ids=given["decoder_input_ids"]).logits[0, -1]


def make_listener():
    """A Speech2Text: two convolutions, each of which halves the number of steps."""
    torch.manual_seed(0)
    sizes = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = hf.Speech2TextConfig(
        vocab_size=40, input_feat_per_channel=8, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32,
        conv_channels=16, max_source_positions=40, max_target_positions=16, decoder_start_token_id=1, **sizes,
    )  # fmt: skip
    return hf.Speech2TextForConditionalGeneration(config).eval().double()


SPOKEN = {"input_features": SOUND[:1].transpose(1, 2), "decoder_input_ids": HEARD["decoder_input_ids"][:1]}


@pytest.mark.parametrize("method", ["attnlrp", "attcat", "rollout"])
def test_what_enters_the_first_layer_of_an_encoder_of_sound_are_frames(method):
    module = make_listener()
    e = why.explain(module, SPOKEN, method)
    assert e.streams == {"source": slice(0, 10), "prefix": slice(10, 13)}
    assert bool(e.stream("source").scores.any())
    assert not any(part._forward_pre_hooks for part in module.modules())


def test_frames_of_any_encoder_of_sound_are_scored_by_hand():
    module, frames = make_listener(), []

    def hold(_, args):
        frames.append(args[0].detach().requires_grad_())
        return (frames[0].clone(), *args[1:])

    handle = module.model.encoder.layers[0].register_forward_pre_hook(hold)
    module(**SPOKEN).logits[0, -1].max().backward()
    handle.remove()
    found = why.explain(module, SPOKEN, "gradient_x_input").stream("source").scores[0]
    assert_close(found, (frames[0] * frames[0].grad).sum(-1)[0])

    def leave_out(_, args):
        changed = args[0].clone()
        changed[:, 3] = args[0].mean(1)
        return (changed, *args[1:])

    left_out = why.explain(module, SPOKEN, "leave_one_out").stream("source").scores[0]
    with torch.no_grad():
        whole = module(**SPOKEN).logits[0, -1]
        module.model.encoder.layers[0].register_forward_pre_hook(leave_out)
        changed = module(**SPOKEN).logits[0, -1]
    assert_close(left_out[3], whole.max() - changed[whole.argmax()])


def test_sounds_with_padding_are_refused():
    mask = torch.ones(1, 40, dtype=torch.long)
    mask[:, 30:] = 0
    with pytest.raises(InputError, match="Pass one at a time, without padding"):
        why.explain(make_listener(), {**SPOKEN, "attention_mask": mask})


# --- learned queries --------------------------------------------------------------------------------------------------


def make_detr():
    torch.manual_seed(0)
    backbone = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    sizes = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = hf.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16,
        num_queries=5, num_labels=4, **sizes,
    )  # fmt: skip
    return hf.DetrForObjectDetection(config).eval().double()


def test_a_query_of_a_detector_is_explained_by_a_function():
    """The class or the box of a query, by gradients at the pixels."""
    module = make_detr()
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
    model = why.open(module)
    for read in (lambda out: out.logits[:, 2, 1], lambda out: out.pred_boxes[:, 2, 0]):
        moved = pixels.clone().requires_grad_()
        (slope,) = torch.autograd.grad(read(module(pixel_values=moved)).sum(), moved)
        e = why.explain(model, {"pixel_values": pixels}, "gradient_x_input", target=read)
        assert_close(e.pixels, (pixels * slope).sum(1))


def make_t5gemma():
    sizes = dict(vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, head_dim=8)
    part = sizes | dict(num_attention_heads=2, num_key_value_heads=2, **IDS)
    torch.manual_seed(0)
    config = hf.T5GemmaConfig(encoder=part, decoder=part, num_labels=3, vocab_size=len(WORDS), **IDS)
    module = hf.T5GemmaForSequenceClassification(config).eval().double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return module


def test_a_span_model_takes_a_padded_batch():
    """What it says of padding depends on the mask of its decoder, and is not read."""
    torch.manual_seed(0)
    module = hf.BartForQuestionAnswering(make_seq2seq("bart, classes").config).eval().double()
    inputs = dict(make_tokenizer()(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False))
    assert not inputs["attention_mask"].all()
    with torch.no_grad():
        own = module(**inputs).start_logits
    prefix = inputs["input_ids"].size(1)  # of the tokens, the source comes first
    e = why.explain(module, inputs, "attnlrp", target=lambda out: out.start_logits[:, prefix + 1])
    assert [target.score for target in e.targets] == pytest.approx(own[:, 1].tolist())


@pytest.mark.parametrize("make", [make_t5gemma, lambda: make_seq2seq("bart, classes")])
def test_a_head_that_classifies_answers_for_a_padded_batch_what_the_model_answers(make):
    """T5Gemma reads one token further where there is padding: its decoder attends to the last word of the source."""
    module = make()
    inputs = dict(make_tokenizer()(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False))
    assert not inputs["attention_mask"].all()
    with torch.no_grad():
        own = module(**inputs).logits
    e = why.explain(module, inputs, "attnlrp", target=1)
    assert [target.score for target in e.targets] == pytest.approx(own[:, 1].tolist())
