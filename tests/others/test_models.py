"""Every model of another library: no fault, and the statuses that tests/others/results.csv and the docs show."""

import pytest
from others.study import CHECKS, METHODS, iterate_faults
from others.sweep import RESULTS, CaseMaker, iterate_cases, load_libraries, make_row, read_rows, study_apart

CASES = list(iterate_cases())
every_case = pytest.mark.parametrize(
    ("library", "model", "build"), CASES, ids=[f"{library}-{model}" for library, model, _ in CASES]
)


@pytest.fixture(scope="module", autouse=True)
def libraries():
    load_libraries()


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], dict[str, str]]:
    return read_rows(RESULTS)


@every_case
def test_has_no_fault_and_is_what_the_table_shows(library: str, model: str, build: CaseMaker, table):
    findings = study_apart(build)
    assert not list(iterate_faults(findings))
    row = make_row(library, model, findings)
    assert {what: row.get(what, "") for what in (*METHODS, *CHECKS)} == {
        what: table[library, model][what] for what in (*METHODS, *CHECKS)
    }, "run: make sweep-others"


def test_there_are_at_least_eighty_models_and_the_table_has_all(table):
    assert len({(library, model) for library, model, _ in CASES}) == len(CASES) >= 80
    assert set(table) == {(library, model) for library, model, _ in CASES}


def test_covers_every_library():
    assert {library for library, _, _ in CASES} >= {
        "timm", "torchvision", "open_clip", "peft", "sentence-transformers", "bitsandbytes", "torchao", "accelerate",
    }  # fmt: skip
