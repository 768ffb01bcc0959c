"""What to explain: targets beyond a class or a next token.

    explain(model, text, target=targets.Token("Paris", at="mask"))       masked language model
    explain(model, text, target=targets.Entity("Berlin", label="LOC"))   token classification
    explain(model, [(question, text)], target=targets.AnswerSpan(12, 15))  extractive question answering
    explain(model, prompt, target=targets.Answer("Paris"))               part of the answer to a prompt
    explain(model, image, target=targets.Group("cat", "dog"))            several classes as one
    explain(model, image, target=targets.Query(label="cat"))             an object that a DETR finds
    explain(model, text, target=lambda out: out.logits[:, 2] - out.logits.logsumexp(-1))

Every target gives one score per example. Except for LogProbability and functions, it is a sum of logits: the
explanation of a span by a linear method is the sum of the explanations of its tokens. All methods take all targets, and
so do `versus=`, `compare`, `judge`, `bulk` and the command line. A target may be written as text (`parse`):

    group:cat,dog   group:cat,-0.5*dog   logp:cat     labels   token:Paris@mask   token:Paris@3   token@4
    tokens:4-7      logp:tokens:4-7      value        entity:Berlin      entity:Berlin=LOC   entity:3-4=LOC
    entity:characters 10-16=LOC          answer:12-15 choice:1           frame:12=a      character:0
    query:3=cat     query:3@width
    representation  answer-tokens:0-3    answer-text:Paris    answer-text:Paris/versus:Rome    logp:answer-sentences:0
    answer-characters:0-12             logodds:answer-tokens

A number is a position or an index; #3 is a class or token by its number where a name is expected.

A function of the output, `target=f`, gets what the model returned and gives a tensor [batch]. Relevance of a nonlinear
function is relevance of its linear part at this output: it starts with the slope of f. See docs/targets.md.
"""

from whyformer._engine.targets.answer_target import *
from whyformer._engine.targets.choice import *
from whyformer._engine.targets.query import *
from whyformer._engine.targets.target_kinds import *
from whyformer._engine.targets.target_like import *
from whyformer._engine.targets.target_text import *

__all__ = """
    Answer AnswerSpan Character Choice Class Entity Frame Group Labels LogProbability Query Representation TargetKind
    Token TokenClasses Tokens Value is_target_text parse
""".split()


def __dir__() -> list[str]:
    return sorted(__all__)
