"""Links: a mark that is concentrated in one folder or value is said to be, one that is spread is not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import fisher_exact
from summary.bulk_folder import image_row, text_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import Finding, Sighting, judge_findings
from whyformer._summary.links import add_links, find_links, list_folders, read_item_metadata
from whyformer.errors import InputError

ROWS = [BulkRow(**text_row(f"{i:02}", i, ["a"], [1.0], target=0)) for i in range(40)]
NAME = ROWS[0].class_name


def make_finding(shown):
    return Finding(NAME, 0, "words", "the word 'tag'", 40, tuple(Sighting(ROWS[i]) for i in shown))


def test_a_concentrated_mark_is_linked_and_the_sentence_says_so():
    hospital = {"hospital": {row.id: "west" if i < 20 else "east" for i, row in enumerate(ROWS)}}
    (one,) = add_links([make_finding([*range(19), 39])], {NAME: ROWS}, hospital)
    (link,) = one.links
    assert (link.column, link.value, link.inside, link.outside) == ("hospital", "west", 0.95, 0.05)
    assert "95% of its items with hospital 'west' show it, 5% of the others" in judge_findings([one])[0].case


def test_the_test_is_fishers_and_corrected_over_all_values():
    values = {"month": {row.id: str(i % 4) for i, row in enumerate(ROWS)}}
    finding = make_finding([0, 4, 8, 12, 16, 20, 1, 2, 3, 7])
    links = {link.value: link for link in find_links(finding, ROWS, values)}
    table = [[6, 4], [4, 26]]
    assert links["0"].p == pytest.approx(fisher_exact(table, alternative="greater").pvalue)
    assert links["0"].p < 0.05 and not add_links([finding, finding], {NAME: ROWS}, values)[0].links, "eight tests"


def test_a_spread_mark_and_a_column_of_names_have_no_links():
    random = np.random.default_rng(0)
    shown = random.permutation(40)[:20]
    columns = {"site": {row.id: str(random.integers(2)) for row in ROWS}, "name": {row.id: row.id for row in ROWS}}
    assert add_links([make_finding(shown)], {NAME: ROWS}, columns)[0].links == ()


def test_folders_of_images_come_from_the_id_or_the_path():
    rows = [
        BulkRow(**image_row("a/x.png", 0, np.ones(4), (2, 2))),
        BulkRow(**image_row("y.png", 1, np.ones(4), (2, 2))),
    ]
    rows = [rows[0], replace(rows[1], source="/data/b/y.png")]
    assert list_folders([*rows, ROWS[0]]) == {"a/x.png": "a", "y.png": "b"}


def test_metadata_is_read_from_a_table_or_a_mapping(tmp_path):
    (tmp_path / "m.csv").write_text("id,site,year\n01,west,\n02,east,2001\n", "utf-8")
    expected = {"site": {"01": "west", "02": "east"}, "year": {"02": "2001"}}
    assert read_item_metadata(tmp_path / "m.csv") == expected
    assert read_item_metadata({"01": {"site": "west"}, "02": {"site": "east", "year": 2001}}) == expected
    assert read_item_metadata(None) == {}


@pytest.mark.parametrize("text", ["name,site\n1,west\n", ""])
def test_metadata_without_ids_is_refused(tmp_path, text):
    (tmp_path / "m.csv").write_text(text, "utf-8")
    with pytest.raises(InputError, match="no column id"):
        read_item_metadata(tmp_path / "m.csv")
    with pytest.raises(InputError, match="could not be read"):
        read_item_metadata(tmp_path / "none.csv")
