"""What its processes may do to the server: nothing that they send is unpickled, none that stops is waited for."""

import asyncio
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

from page.test_server_images import encode
from page.test_server_process import explain, find_status
from PIL import Image

import whyformer._page
from whyformer._page import model_process
from whyformer._page.decoding import Decoder
from whyformer._page.desk import Desk
from whyformer._page.limits import Limits
from whyformer._page.messages import kill_after, read_message, write_message
from whyformer._page.problems import PageProblem

LARGE = Image.effect_noise((700, 700), 90).convert("RGB")  # as a file it does not fit into a socket


@pytest.mark.parametrize("value", [None, {"a": [1, 2.5, "\ud800", "\x00\n"]}, ["run", 3, {"x": {}}], float("inf"), "ü"])
@pytest.mark.parametrize("blobs", [(), (b"",), (b"\n", b"", b"\x00\xff" * 9)])
def test_a_message_is_read_as_it_was_written(value, blobs):
    assert read_message(write_message(value, *blobs)) == (value, list(blobs))


def test_nothing_in_the_page_pickles():
    """`send` and `recv` of a connection pickle; `send_bytes` and `recv_bytes` do not."""
    pickling = re.compile(r"import pickle|pickle\.|\.recv\(|onnection\.send\(|torch\.(load|save)\(|joblib|shelve")
    files = {path: path.read_text() for path in Path(whyformer._page.__file__).parent.rglob("*.py")}
    assert len(files) > 20
    assert [path.name for path, text in files.items() if pickling.search(text)] == []


class Witness:
    """Unpickling this makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_what_a_decoder_that_was_taken_over_sends_is_not_unpickled(tmp_path):
    """A file that makes the decoder run its code must not get further than that."""
    decoder = Decoder(Limits())
    try:
        decoder.start()
        ours, theirs = pipe_with(pickle.dumps(Witness(tmp_path / "unpickled")))
        decoder._connection.close()
        decoder._connection = ours
        with pytest.raises((PageProblem, ValueError)), theirs:
            decoder.decode(b"x")
    finally:
        decoder.stop()
    assert not (tmp_path / "unpickled").exists()


def pipe_with(answer):
    """Our end of a connection in which an answer waits, and the other end."""
    ours, theirs = Pipe()
    theirs.send_bytes(answer)
    return ours, theirs


def test_a_process_that_takes_too_long_is_killed():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with kill_after(0.1, process) as late:
        process.wait(60)
    assert late.is_set()
    with kill_after(600, process) as late:
        pass
    assert not late.is_set()


def test_a_decoder_that_was_stopped_is_given_up_and_the_next_image_is_decoded():
    """A file that does not fit into a socket keeps the sender until somebody reads it."""
    decoder = Decoder(Limits(decode_seconds=1))
    try:
        decoder.start()
        os.kill(decoder._process.pid, signal.SIGSTOP)
        with pytest.raises(PageProblem, match="too long"):
            decoder.decode(encode(LARGE))
        decoder.limits = Limits(decode_seconds=60)
        assert decoder.decode(encode(LARGE)).width == 700
    finally:
        decoder.stop()


def test_not_more_uploads_wait_than_questions():
    desk = Desk([], Limits(waiting=2))
    desk.decoder.decode = lambda data: time.sleep(0.3)

    async def upload_all():
        try:
            found = await asyncio.gather(*(desk.add_image(b"x") for _ in range(6)), return_exceptions=True)
        finally:
            await desk.stop()
        return [getattr(one, "code", "") for one in found]

    assert asyncio.run(upload_all()).count("E_PAGE_BUSY") == 3


@pytest.mark.slow
def test_a_spare_process_that_was_stopped_and_takes_over_is_replaced(monkeypatch):
    monkeypatch.setattr(model_process, "SILENT_SECONDS", 15.0)

    async def kill_and_ask():
        desk = Desk(["demo/sentiment"], Limits())
        await desk.start()
        try:
            assert await find_status(desk, explain(1)) == "result"
            desk.spare.prepare()
            spare, connection = desk.spare._waiting
            while not connection.poll():
                await asyncio.sleep(0.1)
            spare.send_signal(signal.SIGSTOP)
            model = desk.models[0]
            model._process.kill()
            while model._process is not spare:
                await asyncio.sleep(0.1)
            async with asyncio.timeout(200):
                return await find_status(desk, explain(2))
        finally:
            await desk.stop()

    assert asyncio.run(kill_and_ask()) == "result"


@pytest.mark.slow
def test_a_process_that_was_stopped_while_it_works_is_replaced():
    async def stop_and_ask():
        desk = Desk(["demo/sentiment"], Limits(seconds=3))
        await desk.start()
        try:
            assert await find_status(desk, explain(1)) == "result"
            desk.models[0]._process.send_signal(signal.SIGSTOP)
            return [await find_status(desk, explain(number)) for number in (2, 3)]
        finally:
            await desk.stop()

    assert asyncio.run(stop_and_ask()) == ["E_PAGE_TIME", "result"]
