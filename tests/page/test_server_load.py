"""Many clients at once, and thousands of requests that no page would send."""

import base64
import io
import json
import random
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from page.calls import call, call_until_answered, wait_until_ready
from page.tabs import TOKEN, serve
from page.test_server_process import list_attacks
from PIL import Image
from show.payloads import MORE_PAYLOADS, PAYLOADS

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")


pytestmark = pytest.mark.slow
MODELS = ("demo/shapes", "demo/sentiment", "demo/decoder")
CLIENTS, EACH = 16, 20
FUZZED = 1000  # by schemathesis, and as many by our own mutations
GROWTH = 50_000_000  # bytes that the server may take more after the first half
KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
WORDS = "a the film plot cast music gorgeous tedious witty charming awful never ends and is".split()


@pytest.fixture(scope="module")
def running():
    with serve(*MODELS) as (process, address):
        wait_until_ready(address)
        yield psutil.Process(process.pid), address


def make_image(draw):
    image = Image.effect_noise((48, 48), draw.randint(10, 90)).convert("RGB")
    file = io.BytesIO()
    image.save(file, draw.choice(KINDS))
    return file.getvalue()


def make_question(draw, images):
    """A request that a page could send."""
    text = {"text": " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))}
    image, prompt = (
        {"image": draw.choice(images)},
        {"prompt": draw.choice(["the keys to the cabinet", "the dogs near"])},
    )
    model, given = draw.choice([(0, image), (1, text), (1, text), (2, prompt)])
    route = draw.choice(["explain", "explain", "predict", "curve"] + ["generate"] * (model == 2))
    body = {"model": model, "input": given}
    if route == "explain":
        body |= draw.choice([{}, {"top": 2}, {"methods": ["rollout", "attnlrp"]}, {"methods": ["grads"]}])
    if route == "predict":
        hidden = {"patches": [draw.randrange(8)]} if model == 0 else {"tokens": [1]}
        body |= {"variants": [{"hidden": hidden}]}
    return f"/api/{route}", body


def test_every_answer_among_many_clients_is_the_one_that_it_has_alone(running):
    _, address = running
    draw = random.Random(0)
    images = [call(address, "/api/image", make_image(draw)).json["image"] for _ in range(4)]
    questions = [[make_question(draw, images) for _ in range(EACH)] for _ in range(CLIENTS)]

    def ask_all(own):
        return [call_until_answered(address, *question) for question in own]

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(ask_all, questions))
    counts = {status: sum(one.status == status for own in answers for one in own) for status in (200,)}
    assert counts == {200: CLIENTS * EACH}
    with serve(*MODELS) as (_, alone):  # a server that has answered nothing yet
        wait_until_ready(alone)
        for image in images:
            shown = call(address, f"/api/image/{image}").json["preview"].partition(",")[2]
            assert call(alone, "/api/image", base64.b64decode(shown)).json["image"] == image
        for own, found in zip(questions, answers, strict=True):
            for question, answer in zip(own, found, strict=True):
                assert call(alone, *question).body == answer.body, question


def test_nothing_that_is_sent_breaks_it(running):
    """No 500, no traceback, and it does not grow."""
    server, address = running
    counts, sizes = {}, []
    for half in range(2):
        for status in (*fuzz_by_schema(address, half), *fuzz_by_mutation(address, half)):
            counts[status] = counts.get(status, 0) + 1
        sizes.append(server.memory_info().rss)
        print(f"statuses: {counts}; megabytes: {[round(one.memory_info().rss / 1e6) for one in list_family(server)]}")
    assert sum(counts.values()) >= 2 * FUZZED
    assert 500 not in counts
    assert sizes[1] - sizes[0] < GROWTH
    assert all(one["state"] == "ready" for one in wait_until_ready(address))


def test_every_attack_in_every_field_comes_back_as_text(running):
    _, address = running
    for payload in (*PAYLOADS, *MORE_PAYLOADS):
        for path, body in list_attacks(payload, classifier=1, writer=2):
            reply = call(address, path, body)
            assert reply.status < 500 and reply.headers["content-type"] == "application/json", (path, body, reply.body)
            reply.json  # noqa: B018 (it is valid)


def list_family(server):
    return [server, *sorted(server.children(), key=lambda one: one.pid)]


def fuzz_by_schema(address, seed):
    """Requests made from the OpenAPI document; those for a model name one that is there."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings

    headers, statuses, draw = {"Authorization": f"Bearer {TOKEN}"}, [], random.Random(seed)
    images = [call(address, "/api/image", make_image(draw)).json["image"]]
    schema = schemathesis.openapi.from_url(f"{address}/api/openapi.json", headers=headers)

    @settings(
        max_examples=FUZZED // 2, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=schema.as_strategy())
    def send(case):
        if isinstance(case.body, dict) and "model" in case.body:
            case.body |= pick_input(draw, images, case.body["input"])
        reply = case.call(base_url=address, headers=headers, timeout=100)
        statuses.append(reply.status_code)
        assert reply.status_code != 500 and "Traceback" not in reply.text, reply.text[:500]

    send()
    return statuses


def pick_input(draw, images, given):
    """A model that is there, and mostly an input that it takes; the other fields stay as they were drawn."""
    body = make_question(draw, images)[1]
    return {"model": body["model"], "input": given if draw.random() < 0.2 else body["input"]}


def fuzz_by_mutation(address, seed):
    """Valid requests with characters changed, fields dropped or swapped; damaged images; attacks."""
    draw = random.Random(seed)
    images = [call(address, "/api/image", make_image(draw)).json["image"]]
    for number in range(FUZZED // 2):
        path, body = make_question(draw, images)
        if number % 10 == 0:
            path, body = "/api/image", mutate_bytes(draw, make_image(draw))
        elif number % 10 == 1:
            path, body = draw.choice(
                list(list_attacks(draw.choice([*PAYLOADS, *MORE_PAYLOADS]), classifier=1, writer=2))
            )
        elif number % 10 == 2:
            body = mutate_bytes(draw, json.dumps(body).encode())
        elif number % 10 < 9:
            body = mutate_fields(draw, body)
        type_ = {"Content-Type": "application/octet-stream" if path == "/api/image" else "application/json"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = call(address, path, data, headers=type_)
        assert reply.status != 500 and b"Traceback" not in reply.body, (path, data[:500], reply.body[:500])
        yield reply.status


def mutate_bytes(draw, data):
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed[: draw.randrange(len(changed))] if draw.random() < 0.2 else changed)


def mutate_fields(draw, body):
    odd = [None, -1, 2**40, 1.5, "", "x" * 300, [], {}, True, [[1]], {"text": None}, "\ud800", "\x00", "💥" * 50]
    changed = json.loads(json.dumps(body))
    holder = changed if draw.random() < 0.5 or not changed["input"] else changed["input"]
    name = draw.choice([*holder, "top", "methods", "targets", "versus", "span", "health", "fill", "steps", "answer"])
    holder[name] = draw.choice(odd)
    return changed
