"""What one request may cost."""

from dataclasses import dataclass

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Every limit of the server; what exceeds one is refused with the code in problems.py."""

    body_bytes: int = 20 * MEGABYTE
    body_seconds: float = 15.0  # for a body to arrive
    image_pixels: int = 25_000_000  # before decoding; that of the library
    decode_seconds: float = 10.0
    decode_bytes: int = 600 * MEGABYTE  # of memory, for the process that decodes
    characters: int = 20_000  # of all texts of an input, before they are tokenised
    characters_per_token: int = 8  # for language models that read more tokens than that
    seconds: float = 60.0  # that a request may run, without the time that it waits
    waiting: int = 8  # requests that wait for a model, besides the one that runs
    new_tokens: int = 256
    kept_answers: int = 64 * MEGABYTE
    kept_images: int = 256 * MEGABYTE
    connections: int = 768
    strangers: int = 512  # of these, whose last request had no token
    header_seconds: float = 5.0  # for the header of a request to arrive

    def count_characters(self, max_tokens: int | None) -> int:
        """The characters that an input of a model may have that reads so many tokens."""
        return max(self.characters, self.characters_per_token * (max_tokens or 0))
