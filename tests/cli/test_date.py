"""A page has a date where --date asks for it, and only there."""

from datetime import date

from typer.testing import CliRunner

from whyformer import cli


def test_a_page_is_dated_on_request(tmp_path):
    explain = ["explain", "a gorgeous film", "-M", "demo/sentiment", "-m", "rollout", "-o"]
    for given, file in (([], "plain.html"), (["--date"], "dated.html"), ([], "again.html")):
        done = CliRunner().invoke(cli.app, [*given, *explain, str(tmp_path / file)])
        assert done.exit_code == 0, done.output
    today = date.today().isoformat()
    assert today in (tmp_path / "dated.html").read_text()
    assert today not in (tmp_path / "plain.html").read_text()
    assert (tmp_path / "plain.html").read_bytes() == (tmp_path / "again.html").read_bytes()
