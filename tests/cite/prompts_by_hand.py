"""Seventy prompts written by hand, with what a person says of each: cases of sources, marks and quotations.

Passages are in the words of `demo/reader`, which answers such questions right, so that a person can know what it reads.
Each prompt is (passages, question, answer, what is expected). Passages are named by letters, in the order in which the
prompt has them. Expected are `case`: by the letter of a passage, whether the answer rests on it and whether it states
it; `marks`: the finding of each mark in the answer; `quotations`: the finding of each quotation, and the letter of the
passage that has it.
"""

from typing import Any

PASSAGES = {
    "a": "The Aurora sails under captain Anna. It left in March and carries tea.",
    "b": "The lantern fair is held in Lisbon. It opens in May and sells tickets for 40 euros.",
    "c": "The Orion left in June and is loaded with salt.",
    "d": "The Willow bakery belongs to Peter and is known for its honey.",
    "e": "The bronze crown was found in Athens and is worth 75 euros.",
    "f": "The kite fair takes place in Oslo and opens in August.",
    "g": "The Neptune sails under captain Clara and carries copper.",
    "h": "The ivory ring was found in Cairo. It is worth 30 euros.",
}
BOTH, UNNEEDED = "rests on it and it states it", "states it but the model did not need it"
UNSTATED, NEITHER = "rests on it though it does not state it", "neither"
RIGHT, ANOTHER, MISSING = "right", "another source", "no such number"
VERBATIM, IN_PART, NOWHERE = "verbatim", "in part", "nowhere"

PROMPTS: list[tuple[str, str, str, dict[str, Any]]] = [
    # --- which source it rests on, and whether that states it
    ("abc", "What does the Aurora carry?", "tea", {"case": {"a": BOTH, "b": NEITHER, "c": NEITHER}}),
    ("bac", "What does the Aurora carry?", "tea", {"case": {"a": BOTH, "b": NEITHER}}),
    ("cba", "What does the Aurora carry?", "tea", {"case": {"a": BOTH, "b": NEITHER}}),
    ("abd", "Where is the lantern fair held?", "Lisbon", {"case": {"b": BOTH, "d": NEITHER}}),
    ("dab", "Where is the lantern fair held?", "Lisbon", {"case": {"b": BOTH, "d": NEITHER}}),
    ("abcd", "When does the lantern fair open?", "May", {"case": {"b": BOTH, "d": NEITHER}}),
    ("cdab", "When did the Aurora leave?", "March", {"case": {"a": BOTH, "d": NEITHER}}),
    ("acde", "When did the Orion leave?", "June", {"case": {"c": BOTH, "d": NEITHER}}),
    ("edca", "What is the Orion loaded with?", "salt", {"case": {"c": BOTH, "e": NEITHER}}),
    ("abde", "Who owns the Willow bakery?", "Peter", {"case": {"d": BOTH, "b": NEITHER}}),
    ("edba", "What is the Willow bakery known for?", "honey", {"case": {"d": BOTH, "e": NEITHER}}),
    ("abe", "Where was the bronze crown found?", "Athens", {"case": {"e": BOTH, "a": NEITHER}}),
    ("eab", "Where was the bronze crown found?", "Athens", {"case": {"e": BOTH, "a": NEITHER}}),
    ("acf", "Where is the kite fair held?", "Oslo", {"case": {"f": BOTH, "a": NEITHER}}),
    ("fca", "When does the kite fair open?", "August", {"case": {"f": BOTH, "c": NEITHER}}),
    ("gab", "What does the Neptune carry?", "copper", {"case": {"g": BOTH, "b": NEITHER}}),
    ("bag", "Who is the captain of the Neptune?", "Clara", {"case": {"g": BOTH, "b": NEITHER}}),
    ("ahb", "Where was the ivory ring found?", "Cairo", {"case": {"h": BOTH, "b": NEITHER}}),
    ("hcd", "Where was the ivory ring found?", "Cairo", {"case": {"h": BOTH, "c": NEITHER}}),
    ("abcdefgh", "What does the Neptune carry?", "copper", {"case": {"g": BOTH, "d": NEITHER}}),
    ("hgfedcba", "Where is the lantern fair held?", "Lisbon", {"case": {"b": BOTH, "h": NEITHER}}),
    ("aca", "What does the Aurora carry?", "tea", {"case": {"a": BOTH, "c": NEITHER}}),
    # the question says it already
    ("abd", "The lantern fair is held in Lisbon. Where is the lantern fair held?", "Lisbon", {"case": {"b": UNNEEDED}}),
    ("abc", "The Aurora carries tea. What does the Aurora carry?", "tea", {"case": {"a": UNNEEDED, "b": NEITHER}}),
    ("acde", "The Orion left in June. When did the Orion leave?", "June", {"case": {"c": UNNEEDED, "a": NEITHER}}),
    ("gab", "The Neptune sails under captain Clara. Who is its captain?", "Clara", {"case": {"g": UNNEEDED}}),
    ("edba", "The Willow bakery belongs to Peter. Who owns the Willow bakery?", "Peter", {"case": {"d": UNNEEDED}}),
    # half of it is made up
    ("abc", "What does the Aurora carry?", "tea and honey", {"case": {"a": UNSTATED, "b": NEITHER}}),
    ("gab", "What does the Neptune carry?", "copper and gold", {"case": {"g": UNSTATED, "b": NEITHER}}),
    ("edba", "What is the Willow bakery known for?", "honey and bread", {"case": {"d": UNSTATED, "e": NEITHER}}),
    ("acde", "What is the Orion loaded with?", "salt and sugar", {"case": {"c": UNSTATED, "e": NEITHER}}),
    ("ahb", "Where was the ivory ring found?", "Cairo in Egypt", {"case": {"h": UNSTATED, "b": NEITHER}}),
    # --- marks
    ("abc", "What does the Aurora carry?", "tea [1]", {"marks": [RIGHT]}),
    ("bca", "What does the Aurora carry?", "tea [3]", {"marks": [RIGHT]}),
    ("abc", "What does the Aurora carry?", "tea [2]", {"marks": [ANOTHER]}),
    ("abc", "What does the Aurora carry?", "tea [3]", {"marks": [ANOTHER]}),
    ("abc", "What does the Aurora carry?", "tea [4]", {"marks": [MISSING]}),
    ("abc", "What does the Aurora carry?", "tea [9]", {"marks": [MISSING]}),
    ("abd", "Where is the lantern fair held?", "Lisbon [2]", {"marks": [RIGHT]}),
    ("abd", "Where is the lantern fair held?", "Lisbon (Source 2)", {"marks": [RIGHT]}),
    ("abd", "Where is the lantern fair held?", "Lisbon (source 3)", {"marks": [ANOTHER]}),
    ("abd", "Where is the lantern fair held?", "Lisbon (Source 7)", {"marks": [MISSING]}),
    ("acde", "When did the Orion leave?", "June [2]", {"marks": [RIGHT]}),
    ("acde", "When did the Orion leave?", "June [3, 2]", {"marks": [ANOTHER, RIGHT]}),
    ("acde", "When did the Orion leave?", "June [2, 6]", {"marks": [RIGHT, MISSING]}),
    ("acde", "When did the Orion leave?", "June [^2]", {"marks": [RIGHT]}),
    ("acde", "When did the Orion leave?", "June [^5]", {"marks": [MISSING]}),
    ("edba", "What is the Willow bakery known for?", "honey [2]", {"marks": [RIGHT]}),
    ("edba", "What is the Willow bakery known for?", "honey [1]", {"marks": [ANOTHER]}),
    ("edba", "What is the Willow bakery known for?", "honey [1-2]", {"marks": [ANOTHER, RIGHT]}),
    ("gab", "What does the Neptune carry?", "copper [1]", {"marks": [RIGHT]}),
    ("gab", "What does the Neptune carry?", "copper [Source 3]", {"marks": [ANOTHER]}),
    ("abcdefgh", "What does the Neptune carry?", "copper [7]", {"marks": [RIGHT]}),
    ("abcdefgh", "What does the Neptune carry?", "copper [70]", {"marks": [MISSING]}),
    # --- quotations
    ("abc", "What does the Aurora carry?", 'It "carries tea"', {"quotations": [(VERBATIM, "a")]}),
    ("cba", "What does the Aurora carry?", 'It "left in March and carries tea"', {"quotations": [(VERBATIM, "a")]}),
    ("abc", "What does the Aurora carry?", 'It "left in March and carries salt"', {"quotations": [(IN_PART, "a")]}),
    ("abc", "What does the Aurora carry?", 'It "brought gold from Peru"', {"quotations": [(NOWHERE, None)]}),
    ("abd", "Where is the lantern fair held?", "It “is held in Lisbon”", {"quotations": [(VERBATIM, "b")]}),
    ("abd", "Where is the lantern fair held?", "It «is held in Lisbon»", {"quotations": [(VERBATIM, "b")]}),
    ("abd", "Where is the lantern fair held?", '"Is held, in LISBON!"', {"quotations": [(VERBATIM, "b")]}),
    ("abd", "Where is the lantern fair held?", '"is held in Madrid"', {"quotations": [(IN_PART, "b")]}),
    ("acde", "When did the Orion leave?", 'The Orion "left in June"', {"quotations": [(VERBATIM, "c")]}),
    ("acde", "When did the Orion leave?", '"The Orion" left', {"quotations": [(VERBATIM, "c")]}),
    ("acde", "When did the Orion leave?", 'June, "not in July"', {"quotations": [(NOWHERE, None)]}),
    ("edba", "Who owns the Willow bakery?", '"belongs to Peter"', {"quotations": [(VERBATIM, "d")]}),
    ("edba", "Who owns the Willow bakery?", '"belongs to Maria"', {"quotations": [(IN_PART, "d")]}),
    ("edba", "Who owns the Willow bakery?", 'the "owner" Peter', {"quotations": []}),
    ("gab", "Who is the captain of the Neptune?", '"sails under captain Clara" [1]', {"quotations": [(VERBATIM, "g")]}),
    ("ahb", "What is the ivory ring worth?", '"It is worth 30 euros."', {"quotations": [(VERBATIM, "h")]}),
]  # fmt: skip
