"""Generated texts with questions, in the form of bAbI, SNLI and CNN, and with the evidence for each answer known.

Jain & Wallace (2019) audit attention over a text that is conditioned on a question. Their data sets cannot be shipped;
these tasks have the same structure, and every text is generated:

    babi-1   a story in which people move; "where is mary ?" One sentence decides the answer.
    babi-2   people also take and leave things; "where is the milk ?" Two sentences.
    babi-3   "where was the milk before the garden ?" Three sentences.
    snli     premise and hypothesis: a contradiction, an entailment or neutral. The hypothesis alone says nothing: each
             of its words is as frequent with each answer.
    cnn      a report about anonymous entities and a sentence about it, in other words, in which one is missing. The
             numbers of the entities are drawn anew for each text.

Weston et al., Towards AI-complete question answering, 2015 (bAbI); Bowman et al., EMNLP 2015 (SNLI); Hermann et al.,
NeurIPS 2015 (CNN). None of their sentences is used. What is measured on these tasks can be compared with published
results only in kind, not in size.

    generate_reading("babi-1", 100)[0].pair     ("john moved to the garden . ...", "where is john ?")
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whyformer.demo.draws import refuse_outside_range, refuse_unknown_name

PEOPLE = "mary john daniel sandra".split()
PLACES = "bathroom bedroom garden hallway kitchen office".split()
THINGS = "apple football milk".split()
MOVES = ("moved to", "went to", "travelled to", "journeyed to", "went back to")
TAKES = ("got", "picked up", "took", "grabbed")
LEAVES = ("dropped", "left", "discarded", "put down")

SUBJECTS = "man woman".split()
TRAITS = {
    "colour": "red blue green".split(),
    "action": "running sleeping reading".split(),
    "place": "park street beach".split(),
    "company": "dog friend child".split(),
}
PREMISES = {"colour": "in {}", "action": "is {}", "place": "at the {}", "company": "beside a {}"}
HYPOTHESES = {
    "colour": "wears a {} shirt", "action": "is {}", "place": "is at the {}", "company": "has a {} nearby",
}  # fmt: skip
VERDICTS = ("contradiction", "entailment", "neutral")

ENTITIES = [f"@entity{number}" for number in range(10)]
RELATIONS = {
    "met": "spoke with", "praised": "said good things of", "sued": "took to court", "hired": "gave work to",
    "beat": "won against", "followed": "came after",
}  # fmt: skip
DAYS = "monday tuesday wednesday thursday friday".split()
PLACEHOLDER = "@placeholder"


@dataclass(frozen=True)
class ReadingExample:
    """A text, a question about it, and the words of the text that decide the answer."""

    text: str
    question: str
    answer: str
    evidence: tuple[int, ...]  # indices of words of the text, split at spaces

    @property
    def pair(self) -> tuple[str, str]:
        """As `explain` and `audit` take it."""
        return self.text, self.question


@dataclass(frozen=True)
class ReadingTask:
    """How the examples of a task are made."""

    answers: tuple[str, ...]
    generate: Callable[[random.Random], ReadingExample]


def generate_reading(task: str, count: int, seed: int = 0) -> list[ReadingExample]:
    """Different examples of a task."""
    refuse_outside_range("count", count, 0, 1_000_000)
    chosen = find_reading_task(task)
    rng = random.Random(f"{task} {seed}")
    found: dict[tuple[str, str], ReadingExample] = {}
    while len(found) < count:
        example = chosen.generate(rng)
        found.setdefault(example.pair, example)
    return list(found.values())


def find_reading_task(task: str) -> ReadingTask:
    refuse_unknown_name("reading task", task, READING_TASKS)
    return READING_TASKS[task]


def join_story(sentences: Sequence[str], evidence: Sequence[int], question: str, answer: str) -> ReadingExample:
    """One text from sentences; `evidence` are indices of sentences."""
    starts = [0]
    for sentence in sentences:
        starts.append(starts[-1] + len(sentence.split()))
    words = [word for i in sorted(set(evidence)) for word in range(starts[i], starts[i + 1])]
    return ReadingExample(" ".join(sentences), question, answer, tuple(words))


# --- stories ----------------------------------------------------------------------------------------------------------


class Story:
    """People move, take and leave things. Remembers where everything was, and which sentences say so."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sentences: list[str] = []
        self.places: dict[str, tuple[str, int]] = {}  # person -> place, and the sentence that says so
        self.holders: dict[str, tuple[str, int]] = {}  # thing -> person, and the sentence in which it was taken
        self.paths: dict[str, list[tuple[str, tuple[int, ...]]]] = {thing: [] for thing in THINGS}

    def write(self, sentence: str) -> int:
        self.sentences.append(f"{sentence} .")
        return len(self.sentences) - 1

    def move(self) -> None:
        person = self.rng.choice(PEOPLE)
        now = self.places.get(person, ("", 0))[0]
        place = self.rng.choice([place for place in PLACES if place != now])
        at = self.write(f"{person} {self.rng.choice(MOVES)} the {place}")
        self.places[person] = (place, at)
        for thing, (holder, taken) in self.holders.items():
            if holder == person:
                self.paths[thing].append((place, (taken, at)))

    def take(self) -> None:
        within_reach = [
            (thing, person)
            for thing in THINGS if thing not in self.holders
            for person, (place, _) in self.places.items()
            if not self.paths[thing] or self.paths[thing][-1][0] == place
        ]  # fmt: skip
        if not within_reach:
            return self.move()
        thing, person = self.rng.choice(within_reach)
        at = self.write(f"{person} {self.rng.choice(TAKES)} the {thing} there")
        self.holders[thing] = (person, at)
        if not self.paths[thing]:
            place, since = self.places[person]
            self.paths[thing].append((place, (at, since)))
        return None

    def leave(self) -> None:
        if not self.holders:
            return self.take()
        thing = self.rng.choice(sorted(self.holders))
        self.write(f"{self.holders.pop(thing)[0]} {self.rng.choice(LEAVES)} the {thing}")
        return None


def tell_of_people(rng: random.Random) -> ReadingExample:
    story = Story(rng)
    for _ in range(rng.randint(2, 10)):
        story.move()
    person = rng.choice(sorted(story.places))
    place, at = story.places[person]
    return join_story(story.sentences, [at], f"where is {person} ?", place)


def tell_of_things(rng: random.Random) -> ReadingExample:
    story, thing = tell_with_things(rng, (4, 14), 1)
    place, evidence = story.paths[thing][-1]
    return join_story(story.sentences, evidence, f"where is the {thing} ?", place)


def tell_of_journeys(rng: random.Random) -> ReadingExample:
    story, thing = tell_with_things(rng, (8, 22), 2)
    (before, first), (place, second) = story.paths[thing][-2:]
    return join_story(story.sentences, (*first, *second), f"where was the {thing} before the {place} ?", before)


def tell_with_things(rng: random.Random, length: tuple[int, int], places: int) -> tuple[Story, str]:
    """A story of so many sentences, and a thing that was in at least so many places."""
    while True:
        story, sentences = Story(rng), rng.randint(*length)
        story.move()
        while len(story.sentences) < sentences:
            rng.choices((story.move, story.take, story.leave), (5, 3, 1))[0]()
        if known := [thing for thing in THINGS if len(story.paths[thing]) >= places]:
            return story, rng.choice(known)


# --- premise and hypothesis -------------------------------------------------------------------------------------------


def describe_person(subject: str, traits: dict[str, str]) -> str:
    """As part of a premise: "a man in red is running at the park beside a dog"."""
    told = {"action": "seen", **traits}
    return " ".join([f"a {subject}", *(form.format(told[name]) for name, form in PREMISES.items() if name in told)])


def compare_sentences(rng: random.Random) -> ReadingExample:
    verdict, trait = rng.choice(VERDICTS), rng.choice(sorted(TRAITS))
    subject, other = rng.sample(SUBJECTS, 2)
    asked, wrong = rng.sample(TRAITS[trait], 2)
    told = {name: rng.choice(values) for name, values in TRAITS.items() if name != trait and rng.random() < 0.6}
    also = {name: rng.choice(values) for name, values in TRAITS.items() if rng.random() < 0.6}
    if verdict != "neutral":
        told[trait] = asked if verdict == "entailment" else wrong
    parts = [(subject, told), (other, also)]
    rng.shuffle(parts)
    words = f"{describe_person(*parts[0])} while {describe_person(*parts[1])} .".split()
    first = words.index(subject)  # each subject occurs once
    own = range(first, words.index("while") if parts[0][0] == subject else len(words))
    evidence = [i for i in own if words[i] == told.get(trait)] or [first]
    question = f"the {subject} {HYPOTHESES[trait].format(asked)} ."
    return ReadingExample(" ".join(words), question, verdict, tuple(sorted({first, *evidence})))


# --- a report and a sentence with a gap -------------------------------------------------------------------------------


def report_events(rng: random.Random) -> ReadingExample:
    sentences, events = [], []
    actors = rng.sample(ENTITIES, rng.randint(4, 7))
    for verb in rng.sample(sorted(RELATIONS), rng.randint(3, 5)):
        who, whom = rng.sample(actors, 2)
        events.append((who, verb, whom))
        sentences.append(f"on {rng.choice(DAYS)} {who} {verb} {whom} .")
    at = rng.randrange(len(events))
    who, verb, whom = events[at]
    gap = rng.randrange(2)
    question = f"{who if gap else PLACEHOLDER} {RELATIONS[verb]} {PLACEHOLDER if gap else whom}"
    return join_story(sentences, [at], question, (who, whom)[gap])


READING_TASKS = {
    "babi-1": ReadingTask(tuple(PLACES), tell_of_people),
    "babi-2": ReadingTask(tuple(PLACES), tell_of_things),
    "babi-3": ReadingTask(tuple(PLACES), tell_of_journeys),
    "snli": ReadingTask(VERDICTS, compare_sentences),
    "cnn": ReadingTask(tuple(ENTITIES), report_events),
}
