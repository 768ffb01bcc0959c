"""Kinds of which the sample fails today, by family. Strike out what is mended: an entry that passes fails its test."""

KNOWN = (
    # 2 pixels
    "pixels normalised",
    "pixels divided by 255",
    "BatchNorm2d before the patches",
    "image resized",
    "zero added to pixels",
    # 3 no nudge
    "numbers clipped",
    "numbers cut at 0",
    "numbers saturated",
    "numbers logarithm, cut at 0",
    "numbers rounded",
    "numbers in buckets",
    "ids given as floats",
    "a learned vector in the place of a token",
    "missing values by a learned vector",
    # 12 refused
    "ids clamped",
    "ids times a mask",
    "ids modulo the vocabulary",
    "a start token by cat",
    "one-hot times a matrix",
    "an embedding with max_norm",
    # 5 rows
    "scaled by the largest value of the batch",
    "BatchNorm without running statistics",
    "experts with a capacity",
    # 6 chance
    "dropout that stays on",
    "noise in forward",
    # 7 slopes
    "a gradient that is reversed",
    "a gradient that is scaled by detach",
    # 12 refused
    "vmap over the batch",
    "documents cut into the batch",
    # 8 second
    "a second input",
    "a second input of numbers for each row",
    # 11 passed
    "a bias between all tokens",
    "an additive mask",
    # 12 refused
    "squeeze on a batch of one",
    # 4 scale
    "softmax at the end",
    "log_softmax at the end",
    "sigmoid of every class at the end",
    "[1 - p, p] at the end",
    "softmax with a temperature",
    "-inf for other classes",
    "NaN for other classes",
    # 11 passed
    "labels in the batch",
    # unlisted
    "channels last",
    "image cropped in forward",
    "answers to an image and its mirror image averaged",
    "differences of a series",
    "weak tokens dropped before mixing",
    "a memory of earlier calls",
    "classes before rows in the output",
    "one more axis in the output",
    "tokens before rows in the input",
    "forward takes the batch as a dictionary",
    "image padded in forward",
    # 11 passed
    "labels to a model of a library",
    "one text to a model of pairs",
    # 12 false alarm
    "dynamic int8",
    # 10 constant
    "windows without a class token",
    # 11 passed
    "a tuple of two texts",
    "premise and hypothesis",
)
