"""Targets: from what a model returned to the score that is explained."""

from whyformer._engine.targets.answer_target import SCORE_NAMES, Answer, aim_at_answers
from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.choice import Choice, has_choices, pick_choices
from whyformer._engine.targets.chosen_answer import PLAIN_TASKS, ChosenAnswer, choose_answer, choose_terms, is_causal
from whyformer._engine.targets.function_target import (
    ExplainedScore,
    FunctionAnswer,
    FunctionReading,
    ReadOutput,
    explain_function,
    find_function,
)
from whyformer._engine.targets.query import Query
from whyformer._engine.targets.reading import Answers, ClassReading, Reading
from whyformer._engine.targets.readout import compute_readout
from whyformer._engine.targets.target import (
    REPRESENTATION,
    ExplainedAnswer,
    Target,
    TargetNames,
    add_considered,
    choose_target,
    describe_targets,
    expand_pair,
    expand_per_example,
    find_indices,
    find_last_tokens,
    probabilities_of,
    read_logits,
    refuse_same_targets,
)
from whyformer._engine.targets.target_kinds import (
    LONGEST_ANSWER,
    AnswerSpan,
    Character,
    Class,
    Entity,
    Frame,
    Group,
    Labels,
    LogProbability,
    Representation,
    Token,
    TokenClasses,
    Tokens,
    Value,
    settle_target,
)
from whyformer._engine.targets.target_like import Settled, TargetKind, TargetLike
from whyformer._engine.targets.target_text import is_target_text, parse, read_target_texts, restore_target_like
from whyformer._engine.targets.task import Task, find_task, refuse_encoder_decoders
from whyformer._engine.targets.terms import Scale, TermSum
