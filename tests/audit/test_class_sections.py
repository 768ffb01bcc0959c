"""Charts split by predicted class: every example is in its class, and a single class is not split."""

from types import SimpleNamespace

from whyformer._audit.report.sections import CLASS_DRAWINGS, name_classes, split_values_by_class


def make_audit(predicted, labels=("no", "<b>yes</b>")):
    """Rows with made-up values; the fifth of the examples has no values."""
    rows = [{"test": "answer", "attention": "", "example": i, "predicted": p} for i, p in enumerate(predicted)]
    gone = {"undefined": True}
    for i in range(len(predicted)):
        one = {"attention": "a", "example": i, "largest": i / len(predicted)}
        tau = None if i == 4 else 0.1 * i
        rows += [
            {**one, "test": "agreement", "pairs": {"attention ~ gradient, attention held": {"tau": tau}}},
            {
                **one,
                "test": "replacement",
                **({"undefined": True} if i == 4 else {"kinds": {"permutation": {"tvd": i}}}),
            },
            {**one, "test": "adversarial", **(gone if i == 4 else {"jsd": 0.05 * i})},
        ]
    of = lambda test, name="": [r for r in rows if r["test"] == test and r["attention"] == name]  # noqa: E731
    return SimpleNamespace(labels=labels, of=of, marks_spans=False)


def test_values_by_class_by_hand():
    audit = make_audit([0, 1, 1, 0, 0, 1])
    classes = name_classes(audit)
    assert classes == {0: "no", 1: "<b>yes</b>", 2: "<b>yes</b>", 3: "no", 4: "no", 5: "<b>yes</b>"}
    found = split_values_by_class(audit.of("adversarial", "a"), classes, lambda row: row.get("jsd"))
    assert list(found) == ["<b>yes</b>", "no"] and [round(v, 2) for v in found["no"]] == [0.0, 0.15]
    assert len(found["<b>yes</b>"]) == 3


def test_one_class_is_not_split_and_many_are_bounded():
    assert name_classes(make_audit([1, 1, 1])) == {}
    many = name_classes(make_audit([0, 0, 1, 1, 2, 2, 3, 3, 4], labels=None))
    assert set(many.values()) == {"0", "1", "2", "3"} and 8 not in many
    for draw in CLASS_DRAWINGS.values():
        assert list(draw(make_audit([1, 1, 1]), "a")) == []


def test_every_chart_is_drawn_and_names_the_classes():
    audit = make_audit([0, 1, 1, 0, 0, 1])
    kinds = {test: [drawing.alt for drawing in draw(audit, "a")] for test, draw in CLASS_DRAWINGS.items()}
    assert [len(kinds[test]) for test in ("agreement", "replacement", "adversarial")] == [1, 2, 2]
    assert all("no" in alt for alts in kinds.values() for alt in alts)
    markup = next(iter(CLASS_DRAWINGS["adversarial"](audit, "a"))).html()
    assert "<b>yes" not in markup
