"""A generation: the continuation of a text by a language model, with an explanation of every token.

    g = explain_generation(model, "the keys to the cabinet", max_new_tokens=8)
    g[0]; print(g); g.save("why.html")

On the page, click on a token to see why the model chose it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._model.prompt import Prompt
from whyformer.results.explanation import Explanation
from whyformer.results.result import Result, choose_formats
from whyformer.show import figures
from whyformer.show.blocks import Block, ExampleView, Notes, PageSection, PromptRegions, Report, Tabs
from whyformer.show.drawing import Drawing
from whyformer.show.page_facts import collect_facts
from whyformer.show.panel import Panel
from whyformer.show.prompt_view import PromptView, list_panel_fields, view_prompt
from whyformer.show.score_rows import ScoreRow, list_score_rows
from whyformer.show.visible import make_visible
from whyformer.show.wording import name_explainer, name_target, shorten_text

MANY_SCORES = 4_000  # generated tokens x tokens before them


@dataclass(frozen=True, eq=False, repr=False)
class Generation(Result):
    """A text, and for each token of its continuation why the model chose it.

    Files: .html is a page to click through; .png, .svg, .pdf and .txt show all tokens; .csv and .parquet have the
    scores as a table.
    """

    formats = choose_formats(".html .png .svg .pdf .txt .csv .parquet")

    text: str  # prompt and continuation; empty without a tokenizer
    prompt_length: int  # in tokens
    steps: tuple[Explanation, ...]  # one example each: token `prompt_length + i` from all tokens before it
    sequence: Prompt | None = None  # the tokens of prompt and continuation
    whole: Explanation | None = None  # the continuation as one target; None if that needs another run of the model

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Explanation:
        return self.steps[index]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.steps)

    @property
    def words(self) -> list[str]:
        """The tokens of the continuation."""
        return [step.targets[0].label for step in self.steps]

    def matrix(self, stream: str | None = None) -> Tensor:
        """[generated token, earlier token]: the scores, NaN where a token comes later.

        stream: of a model with an encoder and a decoder, only the tokens of the "source" or of the "prefix".
        """
        if stream is not None:
            return self.matrix()[:, self.steps[-1].find_stream(stream)]
        longest = max(len(step.tokens[0]) for step in self.steps)
        scores = torch.full((len(self), longest), float("nan"), dtype=torch.double)
        for row, step in zip(scores, self.steps, strict=True):
            row[: len(step.tokens[0])] = step.scores[0].double()
        return scores

    def __repr__(self) -> str:
        words, method = make_visible("".join(self.words)), make_visible(self.steps[0].method)
        return f"<Generation of {len(self)} tokens by {method}: {words!r}>"

    def view(self) -> PromptView | None:
        """The prompt with the scores of every generated token, for display; None without its tokens."""
        if self.sequence is None:
            return None
        first, scores = self.steps[0].panels()[0], self.matrix().nan_to_num()
        steps = F.pad(scores, (0, len(self.sequence) - scores.shape[1]))
        answer = self.sequence.answer_text or "".join(self.words)
        return view_prompt(
            self.sequence,
            headline=f"Why \u201c{shorten_text(make_visible(answer.strip()), 60)}\u201d?",
            scores=steps.sum(0) if self.whole is None else self.whole.scores[0].double(),
            steps=steps,
            **list_panel_fields(first),
        )

    def panels(self) -> list[Panel]:
        """One panel per generated token."""
        return [step.panels()[0] for step in self.steps]

    def draw(self) -> Drawing:
        """A figure with one line per generated token: the text before it, coloured by score."""
        panels = self.panels()
        names = [name_target(panel.target) for panel in panels]
        alt = f"Why {', '.join(names)}, by {self.steps[0].method}"
        return figures.draw_panel_table([("", panels)], names, title="", alt=alt)

    def _list_rows(self) -> Iterator[ScoreRow]:
        return list_score_rows(self.panels())

    def _report(self) -> Report:
        """The continuation to click on, and below it the text before the selected token, coloured by score.

        A long prompt, or one with several regions, is shown with its regions, for all generated tokens together.
        """
        panels, view = self.panels(), self.view()
        first = panels[0]
        lead, facts = f"Token by token. {name_explainer(first)}", collect_facts(first)
        answer = (self.sequence and self.sequence.answer_text) or "".join(self.words)
        title = f"Why “{shorten_text(answer.strip(), 60)}”?"
        tokens = [(one.target.label, [ExampleView(one)]) for one in panels]
        choice = Tabs(tokens, "Which token to explain", is_prose=True)
        brief: list[Block] = [choice, Notes(self.steps[0].notes)]
        # The text cannot be shown once for every generated token.
        if view is not None and sum(len(step.tokens[0]) for step in self.steps) > MANY_SCORES:
            return Report(title, [PromptRegions(view)], lead, facts, is_titled=False)
        if view is not None and len(view.regions) > 1:
            return Report(title, [PromptRegions(view)], lead, facts, is_titled=False, brief=brief)
        blocks: list[Block] = [
            PageSection("Prompt", [first.pieces.text or ""]),
            PageSection("Continuation", [choice], "Choose a token by click or with the arrow keys."),
        ]
        return Report(title, [*blocks, *brief[1:]], lead, facts, is_titled=False, brief=brief)
