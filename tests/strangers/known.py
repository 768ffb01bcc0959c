"""Kinds of which the sample fails today, by family. Strike out what is mended: an entry that passes fails its test."""

KNOWN = (
    # 7 slopes
    "a gradient that is reversed",
    # 12 refused
    "vmap over the batch",
    "documents cut into the batch",
    # unlisted
    "image cropped in forward",
    "answers to an image and its mirror image averaged",
    "a memory of earlier calls",
    "tokens before rows in the input",
    "forward takes the batch as a dictionary",
    # 10 constant
    "windows without a class token",
)
