"""A page has the date of the day; with --no-date it has none, and two of the same call are equal."""

from datetime import date

from typer.testing import CliRunner

from whyformer import cli


def test_a_page_is_dated_unless_asked_not_to_be(tmp_path):
    explain = ["explain", "a gorgeous film", "-M", "demo/sentiment", "-m", "rollout", "-o"]
    for given, file in (([], "dated.html"), (["--no-date"], "plain.html"), (["--no-date"], "again.html")):
        done = CliRunner().invoke(cli.app, [*given, *explain, str(tmp_path / file)])
        assert done.exit_code == 0, done.output
    dated = f"<dt>date</dt><dd>{date.today().isoformat()}</dd>"
    assert dated in (tmp_path / "dated.html").read_text()
    assert "<dt>date</dt>" not in (tmp_path / "plain.html").read_text()
    assert (tmp_path / "plain.html").read_bytes() == (tmp_path / "again.html").read_bytes()
