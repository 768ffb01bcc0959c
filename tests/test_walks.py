"""Four people with nothing but the README and the pages it links: each block below is taken from there, and only what
is theirs (a model, a file, passages) is put in its place.
"""

import re
import shlex
import webbrowser
from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny_text
from typer.testing import CliRunner

import whyformer as why
from whyformer.cli import app
from whyformer.methods._registry import METHODS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)[^)]*\)")


def list_pages() -> set[str]:
    """The README and what it links, as paths from the root."""
    return {"README.md", *LINK.findall(README.read_text())}


def take(page: str, *, containing: str) -> str:
    """The one block of a page that contains these words."""
    assert page in list_pages(), f"README does not link {page}"
    blocks = [block["code"] for block in BLOCK.finditer((ROOT / page).read_text()) if containing in block["code"]]
    assert len(blocks) == 1, f"{page} has {len(blocks)} blocks with {containing!r}"
    return blocks[0]


def take_command(page: str, start: str) -> str:
    """A command as a page shows it in its text or its blocks."""
    assert page in list_pages()
    found = re.search(rf"{re.escape(start)}[^`\n]*", (ROOT / page).read_text())
    assert found, f"{page} does not show {start!r}"
    return found[0].split("#")[0].strip()


def put(code: str, own: Mapping[str, str]) -> str:
    for theirs, mine in own.items():
        assert theirs in code, theirs
        code = code.replace(theirs, mine)
    return code


def run_cli(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command.removeprefix("whyformer ")))
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return result.output


@pytest.fixture(autouse=True)
def from_nothing(tmp_path, monkeypatch):
    """An empty folder, and a browser that only notes what it is asked to open."""
    monkeypatch.chdir(tmp_path)
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: pages.append(address) or True)
    before = dict(METHODS)
    yield pages
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.filterwarnings("ignore")  # of the training library
def test_who_fine_tunes_models(capsys):
    """Explains a checkpoint of their own, trains it on with a callback, and asserts what it looks at."""
    tiny_text.bert().save_pretrained("checkpoint")
    tiny_text.wordpiece().save_pretrained("checkpoint")
    names: dict[str, object] = {}
    mine = {"demo/sentiment": "checkpoint", "a gorgeous, witty film, despite its tedious first hour": "the film is bad"}
    exec(put(take("README.md", containing="why.open("), mine), names)
    assert "by libragrad" in capsys.readouterr().out
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    import torch
    from transformers import TrainingArguments

    rows = [{"input_ids": torch.tensor([2, 5 + i, 6, 3]), "labels": torch.tensor(i % 3)} for i in range(8)]
    names |= {"model": tiny_text.bert().train(), "tokenizer": tiny_text.wordpiece(), "data": rows}
    names["args"] = TrainingArguments("out", max_steps=2, report_to="none", use_cpu=True, save_strategy="no")
    loop = put(take("docs/integrations.md", containing="Trainer(model"), {"gorgeous": "good", "tedious": "bad"})
    exec(loop, names)
    assert [look.step for look in names["looks"].looks] == [0, 2] and Path("looks/looks.jsonl").is_file()
    check = take("docs/integrations.md", containing="assert_looks_at")
    exec(put(check.splitlines()[2], {"demo/sentiment": "checkpoint", "share=0.5": "share=0"}
             | {"a gorgeous, witty film": "a good film", '"gorgeous", "witty"': '"good"'}),
         {"assert_looks_at": why.integrations.assert_looks_at})  # fmt: skip


def test_who_must_defend_a_decision(from_nothing):
    """From the command line alone: a page of one decision, then a report of which method holds on their data."""
    run_cli("whyformer demo --sample cat.jpg --sample reviews.csv")  # in place of their own files
    run_cli(take_command("README.md", "whyformer explain"))
    assert Path(from_nothing[0].removeprefix("file://")).is_file()
    judge = take_command("docs/start.md", "whyformer judge")
    output = run_cli(put(judge, {"my/model": "demo/sentiment"}) + " --limit 6 -m libragrad -m rollout")
    assert "6" in output and Path("run/report.html").is_file() and from_nothing[1].endswith("/run/report.html")


def test_who_runs_retrieval(capsys):
    """Their passages, the answer of a model, the passage that it rests on, and a page to show."""
    mine = {"carries tea": "carries salt", "sells salt": "sells tea"}
    names: dict[str, object] = {"why": why}
    exec(put(take("README.md", containing="why.cite("), mine), names)
    answer, reading, text = capsys.readouterr().out.strip().split(" | ")
    assert answer.strip() == "salt" and reading.startswith("rests on passage 1")
    assert text == "The Aurora left in March and carries salt."
    names["c"].save("sources.html")
    assert "carries salt" in Path("sources.html").read_text()


def test_who_adds_a_method():
    """The method of the page, changed a little, judged beside one that ships."""
    own = {"value_gradient": "mine", '"cat.jpg"': '"a fine film"', "vit": '"demo/sentiment"'}
    names: dict[str, object] = {"why": why, "__name__": "__main__"}
    exec(put(take("docs/how-to.md", containing="def value_gradient"), own), names)
    assert names["e"].method == "mine"
    judged = why.judge("demo/sentiment", ["a fine film", "a dull film"], ["mine", "rollout"], ["comprehensiveness"])
    assert "mine" in {line.method for line in judged.table.lines}
