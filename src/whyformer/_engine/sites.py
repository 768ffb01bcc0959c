"""Sites: the named places where a running model can be captured, with their axes. Said once, here.

Sites that begin with `layer` or `boundary` come as a sequence with one tensor a layer, rebuilt when it is asked for; a
stacked tensor serves as well, since a method only indexes and iterates. `_grad` is the gradient of the explained score,
`_relevance` what the recipe sends there.
"""

SITES: dict[str, str] = {
    "attention": "layer batch head query key",  # after softmax
    "attention_grad": "layer batch head query key",
    "attention_relevance": "layer batch head query key",
    "query": "layer batch head query channel",
    "key": "layer batch head key channel",
    "value": "layer batch head key channel",
    "attention_output": "layer batch head query channel",  # attention @ value, before heads are joined
    "attention_output_grad": "layer batch head query channel",
    "projected": "layer batch head key channel",  # what a head adds to a token that attends to this one alone
    "residual": "layer batch token channel",  # what the attention of a block is added to
    "middle": "layer batch token channel",  # the state after that, and after the norm behind it if there is one
    "update": "layer batch token channel",  # what the second half of a block adds to that
    "norms": "layer norm",  # the norms between that first addition and the end of the block: stream.Norm, a linear map
    "hidden": "boundary batch token channel",  # [0] enters the first block, [-1] leaves the last
    "hidden_grad": "boundary batch token channel",
    "hidden_relevance": "boundary batch token channel",
    "input": "batch *place channel",  # *place is `token`, or `height width` of an image
    "input_grad": "batch *place channel",
    "input_relevance": "batch *place channel",
    "token_relevance": "batch token",  # of the tokens themselves, where positions are added to them
    "position_relevance": "place batch token",  # of positions, once for each place where they come in
    "answer_parts": "batch token",  # what each token brought into the explained logit, parts carried through all layers
    "readout": "batch token",  # how much of the answer is read at each token; sums to 1
    "mask": "batch token",  # True where a token is real, not padding
    "special": "batch token",  # True where a token stands for no word or patch (CLS, SEP, registers)
    "fingerprint": "batch",  # an integer that depends on the example alone, never on its place in the batch
    "probe": "the model again",  # a Probe: other inputs, other attention, their answers
}
