"""The endpoint client against a server that answers, throttles, fails, hangs and cuts bodies."""

import asyncio
import time

import pytest

from ritornello.common.chat import (
    CachedClient,
    CapabilityError,
    Completion,
    ContextLengthError,
    EndpointError,
    ErrorBudgetExceeded,
    FakeServer,
    Fault,
    GenerationParams,
    Image,
    Message,
    OpenAIClient,
    Prompt,
    RetryPolicy,
    ScriptedClient,
    Text,
    Usage,
    replicates,
)
from ritornello.common.chat.pacing import AdaptiveLimit, RateLimit, retry_after_seconds

FAST = RetryPolicy(attempts=3, base_seconds=0.01, cap_seconds=0.02)
PARAMS = GenerationParams(max_tokens=8)


def asked(body):
    """The question of a request: raw text or the last message."""
    return body.get("prompt") or body["messages"][-1]["content"]


def echo_client():
    return ScriptedClient(lambda prompt, params: f"re: {prompt.text or prompt.messages[-1].text}")


def endpoint(server, **options):
    return OpenAIClient(server.base_url, "fake", **{"retry": FAST, **options})


def test_messages_and_raw_text_are_answered_in_order():
    with FakeServer(echo_client()) as server:
        prompts = [[Message.user("a")], "b", [Message.system("s"), Message.user("c")]]
        answers = endpoint(server).generate(prompts, PARAMS)
    assert [answer.text for answer in answers] == ["re: a", "re: b", "re: c"]
    assert [request.path for request in server.requests].count("/v1/chat/completions") == 2
    assert all(answer.attempts == 1 and answer.model == "fake" for answer in answers)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=500),
        Fault("status", status=503),
        Fault("status", status=408),
        Fault("status", status=429),
        Fault("cut"),
        Fault("garbage"),
        Fault("drop"),
        Fault("hang"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_passing_faults_are_tried_again(fault):
    """Exactly one more call for the request that failed, none for the others."""
    seen = []

    def misbehave(number, body):
        seen.append(asked(body))
        return fault if seen.count("bad") == 1 and asked(body) == "bad" else None

    with FakeServer(echo_client(), misbehave=misbehave) as server:
        client = endpoint(server, timeout_seconds=0.5 if fault.kind == "hang" else 30.0)
        answers = client.generate(["good", "bad", "fine"], PARAMS)
    assert [answer.text for answer in answers] == ["re: good", "re: bad", "re: fine"]
    assert [answer.attempts for answer in answers] == [1, 2, 1]
    assert len(server.requests) == 4


def test_retry_after_wins_over_our_own_wait():
    def misbehave(number, body):
        return Fault("status", status=429, headers={"Retry-After": "0.4"}) if number == 0 else None

    with FakeServer(echo_client(), misbehave=misbehave) as server:
        endpoint(server).generate(["a"], PARAMS)
    first, second = (request.time_seconds for request in server.requests)
    assert 0.4 <= second - first < 5.0


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_a_refusing_server_stops_the_call_with_its_message(status):
    fault = Fault("status", status=status, message="no such key")
    with FakeServer(echo_client(), misbehave=lambda number, body: fault) as server:
        client = endpoint(server, max_concurrency=1)
        with pytest.raises(EndpointError, match=f"{status}.*no such key") as told:
            client.generate(["a", "b", "c"], PARAMS)
    assert ("api_key_env" in str(told.value)) == (status in (401, 403))
    assert len(server.requests) == 1


def test_a_refusal_in_another_form_is_told_too():
    """FastAPI's servers send `detail`, which the SDK's own message leaves out."""
    fault = Fault("status", status=422, body={"detail": "Unexpected fields: top_k"})
    with FakeServer(echo_client(), misbehave=lambda number, body: fault) as server:
        with pytest.raises(EndpointError, match=r"422.*Unexpected fields: top_k"):
            endpoint(server).generate(["a"], PARAMS)
        with pytest.raises(EndpointError, match="Unexpected fields"):
            endpoint(server, extra_capabilities=["scores"]).score_continuations(["a"], [["b"]])


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 10 tokens",
        "Requested tokens (20) exceed context window of 10 tokens",
        "the request exceeds the available context size (10 tokens)",
        "the prompt is longer than the maximum model length of 10 tokens",
    ],
)
def test_too_long_a_prompt_has_its_own_error(words):
    fault = Fault("status", status=400, message=words)
    with (
        FakeServer(echo_client(), misbehave=lambda number, body: fault) as server,
        pytest.raises(ContextLengthError, match="10 tokens"),
    ):
        endpoint(server).generate(["a"], PARAMS)


def test_a_content_filter_is_an_answer():
    azure = {"error": {"message": "triggered the content policy", "code": "content_filter"}}
    fault = Fault("status", status=400, body=azure)
    client = ScriptedClient(lambda prompt, params: Completion("", "content_filter"))
    for misbehave in (lambda number, body: fault, None):
        with FakeServer(client, misbehave=misbehave) as server:
            answer = endpoint(server).generate([[Message.user("a")]], PARAMS)[0]
        assert (answer.finish_reason, answer.attempts) == ("content_filter", 1)


def answered(body, prompt="a", **params):
    """The client's answer where the server sends `body`, and how often it was asked."""
    fault = Fault("body", body=body)
    with FakeServer(echo_client(), misbehave=lambda number, asked: fault) as server:
        client = endpoint(server, max_error_fraction=1)
        answer = client.generate([prompt], GenerationParams(max_tokens=4, **params))[0]
    return answer, len(server.requests)


def chat_body(content, finish_reason="stop", **choice):
    message = {"role": "assistant", "content": content} | choice.pop("message", {})
    return {"choices": [{"message": message, "finish_reason": finish_reason} | choice]}


@pytest.mark.parametrize(
    ("body", "text", "reason"),
    [
        (chat_body("a", None), "a", "stop"),
        (chat_body("a", "eos_token") | {"usage": {}, "object": "x", "new": {}}, "a", "stop"),
        (chat_body("a", "max_tokens", index=0, content_filter_results={}), "a", "length"),
        (chat_body(None, "length", message={"reasoning_content": "so"}), "", "length"),
        (chat_body(None, "tool_calls", message={"tool_calls": []}), "", "stop"),
        (chat_body(None, "content_filter"), "", "content_filter"),
        (chat_body(None, message={"refusal": "no"}), "no", "content_filter"),
        (chat_body([{"type": "thinking"}, {"type": "text", "text": "a"}]), "a", "stop"),
        (chat_body("a", "abort"), "a", "error"),
        (chat_body("one STOP two", "length"), "one ", "stop"),
        ({"choices": chat_body("a")["choices"] + chat_body("b")["choices"]}, "a", "stop"),
    ],
)
def test_answers_of_many_servers_are_read(body, text, reason):
    answer, asked = answered(body, [Message.user("a")], stop=("STOP",))
    assert (answer.text, answer.finish_reason, asked) == (text, reason, 1)
    assert (answer.error is not None) == (reason == "error")
    assert answer.stop_reason == ("STOP" if text == "one " else None)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"choices": []}, 3),
        ({"choices": [{"index": 0}]}, 3),
        (chat_body("an answer of the other endpoint"), 3),
        ([1], 3),
        ({"error": {"message": "slow down", "code": 429}}, 3),
        ({"error": {"message": "no credit", "code": 402}}, 1),
    ],
)
def test_bodies_without_an_answer_are_told(body, asked):
    fault = Fault("body", body=body)
    words = "no credit" if asked == 1 else "no answer in the body"
    with (
        FakeServer(echo_client(), misbehave=lambda number, sent: fault) as server,
        pytest.raises((EndpointError, ErrorBudgetExceeded), match=words),
    ):
        endpoint(server).generate(["a"], PARAMS)
    assert len(server.requests) == asked


def test_log_probabilities_are_read_in_the_forms_of_several_servers():
    token = {"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
    twice = token | {"top_logprobs": [{"token": "b", "logprob": -v} for v in (2.0, 9.0)]}
    text = {"text": "a", "finish_reason": "stop"}
    old = {"token_logprobs": [-0.1], "top_logprobs": [{"b": -2.0}], "text_offset": [0]}
    for choice in (text | {"logprobs": old}, text | {"logprobs": {"content": [twice]}}):
        answer, _ = answered({"choices": [choice]}, logprobs=1)
        assert (answer.logprobs, answer.top_logprobs) == ((-0.1,), ({"b": -2.0},))
    hidden = text | {"logprobs": {"token_logprobs": [-0.1], "top_logprobs": None}}
    assert answered({"choices": [hidden]}, logprobs=1)[0].top_logprobs is None
    for missing in (None, {"content": None}, {"token_logprobs": [None]}):
        with pytest.raises(CapabilityError, match="without the log-probabilities"):
            answered({"choices": [text | {"logprobs": missing}]}, logprobs=0)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault("body", body=chat_body("b", text="ab")), CapabilityError, "log-probabilities"),
        (Fault("status"), EndpointError, "500"),
    ],
)
def test_a_server_that_cannot_score_is_told(fault, error, words):
    with FakeServer(echo_client(), misbehave=lambda number, body: fault) as server:
        client = endpoint(server, extra_capabilities=["scores"])
        for prompt in ([Message.user("a")], "a"):
            with pytest.raises(error, match=words):
                client.score_continuations([prompt], [["b"]])


def test_lasting_faults_become_error_completions_within_the_budget():
    def misbehave(number, body):
        return Fault("status", status=500) if asked(body) == "bad" else None

    with FakeServer(echo_client(), misbehave=misbehave) as server:
        answers = endpoint(server, max_error_fraction=0.5).generate(["good", "bad"], PARAMS)
        assert [answer.finish_reason for answer in answers] == ["stop", "error"]
        assert answers[1].attempts == 3
        assert "500" in answers[1].error
        with pytest.raises(ErrorBudgetExceeded, match="1 of 2 requests"):
            endpoint(server, max_error_fraction=0.4).generate(["good", "bad"], PARAMS)


def test_resuming_after_the_budget_broke_asks_only_for_the_rest(tmp_path):
    healthy = False

    def misbehave(number, body):
        return Fault("status", status=500) if asked(body) == "bad" and not healthy else None

    with FakeServer(echo_client(), misbehave=misbehave) as server:
        client = CachedClient(endpoint(server, max_concurrency=1), tmp_path / "cache.sqlite")
        with pytest.raises(ErrorBudgetExceeded):
            client.generate(["a", "b", "bad", "c"], PARAMS)
        healthy = True
        answers = client.generate(["a", "b", "bad", "c"], PARAMS)
    assert [answer.text for answer in answers] == ["re: a", "re: b", "re: bad", "re: c"]
    questions = [asked(request.body) for request in server.requests]
    assert questions == ["a", "b", "bad", "bad", "bad", "bad", "c"]


def test_concurrency_stays_below_its_ceiling():
    misbehave = lambda number, body: Fault("delay", seconds=0.03)  # noqa: E731
    with FakeServer(echo_client(), misbehave=misbehave) as server:
        endpoint(server, max_concurrency=3).generate(list(map(str, range(12))), PARAMS)
    assert server.most_at_once == 3


def test_a_request_rate_is_kept():
    with FakeServer(echo_client()) as server:
        client = endpoint(server, requests_per_minute=1200)
        client.generate(list(map(str, range(40))), PARAMS)
    times = sorted(request.time_seconds for request in server.requests)
    # 20 a second, after a burst of one second's worth: the last one is due after 0.95 s, and the
    # first one is noticed late by the time of a connection
    assert times[-1] - times[0] >= 0.7


def test_settings_reach_the_server():
    with FakeServer(echo_client()) as server:
        client = endpoint(server, extra_body={"repetition_penalty": 1.1})
        params = GenerationParams(max_tokens=3, temperature=0.5, top_p=0.9, top_k=5, stop=("x",))
        client.generate(replicates([Message.user("a")], 2), params)
    first, second = (request.body for request in server.requests)
    expected = {"model": "fake", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5}
    assert first.items() >= (expected | {"repetition_penalty": 1.1}).items()
    assert first["stop"] == ["x"]
    assert first["seed"] != second["seed"]


def test_fields_that_a_server_does_not_know_can_be_left_out():
    extra = {"max_tokens": None, "max_completion_tokens": 9, "stop_token_ids": None}
    with FakeServer(echo_client()) as server:
        params = GenerationParams(max_tokens=3, stop_token_ids=(2,))
        endpoint(server, extra_body=extra).generate(["a"], params)
    sent = server.requests[0].body
    assert sent["max_completion_tokens"] == 9
    assert not {"max_tokens", "stop_token_ids"} & set(sent)


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret-value")
    with FakeServer(echo_client()) as server:
        client = endpoint(server, api_key_env="SOME_KEY")
        client.generate(["a"], PARAMS)
    assert server.requests[0].headers["authorization"] == "Bearer secret-value"
    assert "secret-value" not in client.model_id + repr(vars(client))


def test_pictures_and_prefill_travel():
    with FakeServer(echo_client()) as server:
        client = endpoint(server, extra_capabilities=["prefill"])
        message = Message.user([Text("look"), Image(b"bytes")])
        client.generate([Prompt((message,), prefill="I see")], PARAMS)
        with pytest.raises(CapabilityError, match="prefill"):
            endpoint(server).generate([Prompt((message,), prefill="I see")], PARAMS)
    body = server.requests[0].body
    assert body["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,Ynl0ZXM="
    assert body["messages"][1] == {"role": "assistant", "content": "I see"}
    assert body["continue_final_message"] is True


def test_logprobs_and_usage_are_read():
    reply = Completion(
        "hi", logprobs=(-0.1, -0.2), top_logprobs=({"h": -0.1}, {"i": -0.2}), usage=Usage(4, 2)
    )
    with FakeServer(ScriptedClient(lambda prompt, params: reply)) as server:
        params = GenerationParams(max_tokens=4, logprobs=1)
        for prompt in ([Message.user("a")], "a"):
            answer = endpoint(server).generate([prompt], params)[0]
            assert answer.logprobs == (-0.1, -0.2)
            assert answer.top_logprobs == ({"h": -0.1}, {"i": -0.2})
            assert answer.usage == Usage(4, 2)


def test_raw_text_is_scored_by_echo():
    def echo(text):
        return [(char, -float(ord(char)), {char: -float(ord(char))}) for char in text]

    with FakeServer(echo_client(), echo=echo) as server:
        client = endpoint(server, extra_capabilities=["scores"])
        scores = client.score_continuations(["ab"], [["c", "de"]])[0]
    assert scores.tokens == ((-99.0,), (-100.0, -101.0))
    assert scores.best == 0
    assert scores.greedy == (True, True)


def test_echo_tells_the_most_probable_token_from_the_better_option():
    """The best option need not be greedy, and a server may keep its alternatives to itself."""

    def echo(text):
        best = {"c": -1.0, "x": -0.5} if "c" in text else {"d": -2.0}
        return [(char, -1.0 if char == "c" else -2.0, best) for char in text]

    def silent(text):
        return [(char, -1.0, None) for char in text]

    for answer, greedy in ((echo, (False, True)), (silent, (None, None))):
        with FakeServer(echo_client(), echo=answer) as server:
            client = endpoint(server, extra_capabilities=["scores"])
            assert client.score_continuations(["a"], [["c", "d"]])[0].greedy == greedy


def test_scoring_after_nothing_is_refused():
    with FakeServer(echo_client(), echo=lambda text: [(text, -1.0, None)]) as server:
        client = endpoint(server, extra_capabilities=["scores"])
        with pytest.raises(ValueError, match="prompt 1 is empty"):
            client.score_continuations(["a", "  "], [["c"], ["c"]])
        with pytest.raises(ValueError, match="one entry per prompt"):
            client.score_continuations(["a"], [])


def test_echoed_tokens_that_begin_with_the_prompts_last_blank_are_scored():
    def echo(text):
        value = -0.5 if "yes" in text else -2.0
        return [("is it?", -7.0, None), (text.removeprefix("is it?"), value, None)]

    with FakeServer(echo_client(), echo=echo) as server:
        client = endpoint(server, extra_capabilities=["scores"])
        scores = client.score_continuations(["is it? "], [["no", "yes"]])[0]
        assert (scores.tokens, scores.best) == (((-2.0,), (-0.5,)), 1)


def test_what_a_server_writes_behind_an_echo_is_not_scored():
    """llama-cpp-python takes max_tokens=0 for no limit."""
    tops = [None, {"c": -0.5}, {"x": -0.1}]
    logprobs = {"text_offset": [0, 2, 3], "token_logprobs": [None, -0.5, -9.0]}
    body = {"choices": [{"text": "abcd", "logprobs": logprobs | {"top_logprobs": tops}}]}
    with FakeServer(echo_client(), misbehave=lambda n, b: Fault("body", body=body)) as server:
        client = endpoint(server, extra_capabilities=["scores"])
        scores = client.score_continuations(["ab"], [["c"]])[0]
    assert (scores.tokens, scores.greedy) == (((-0.5,),), (True,))


def test_a_continuation_without_a_token_of_its_own_is_refused():
    with FakeServer(echo_client(), echo=lambda text: [(text, -1.0, None)]) as server:
        client = endpoint(server, extra_capabilities=["scores"])
        with pytest.raises(CapabilityError, match="'c'"):
            client.score_continuations(["ab"], [["c"]])


def test_messages_are_scored_by_the_first_tokens_alternatives():
    reply = Completion("A", logprobs=(-0.3,), top_logprobs=({"A": -0.3, "B": -1.5},))
    with FakeServer(ScriptedClient(lambda prompt, params: reply)) as server:
        prompt = [Message.user("A or B?")]
        scores = endpoint(server).score_continuations([prompt], [["B", "A"]])[0]
        assert (scores.total, scores.greedy) == ((-1.5, -0.3), (False, True))
        with pytest.raises(CapabilityError, match="'C'"):
            endpoint(server).score_continuations([prompt], [["C"]])


def test_a_local_model_can_be_served(client):
    """What the server sends equals what its model answers, also with a seed."""
    with FakeServer(client) as server:
        params = GenerationParams(max_tokens=12)
        prompts = ["abc", "defg"]
        served = endpoint(server).generate(prompts, params)
    local = client.generate(prompts, params)
    assert [answer.text for answer in served] == [answer.text for answer in local]
    assert [answer.usage for answer in served] == [answer.usage for answer in local]


def test_a_call_works_inside_a_running_event_loop():
    async def notebook(server):
        return endpoint(server).generate(["a"], PARAMS)

    with FakeServer(echo_client()) as server:
        assert asyncio.run(notebook(server))[0].text == "re: a"


def test_adaptive_limit_doubles_until_throttled_then_grows_by_one_per_window():
    async def scenario():
        limit = AdaptiveLimit(20, start=4, cool_down_seconds=60.0)
        for _ in range(4):
            limit.succeeded()
        assert limit.limit == 8
        limit.throttled()
        limit.throttled()
        assert limit.limit == pytest.approx(6.4)
        for _ in range(6):
            limit.succeeded()
        assert limit.limit == pytest.approx(7.4)
        for _ in range(1000):
            limit.succeeded()
        assert limit.limit == 20

    asyncio.run(scenario())


def test_rate_limit_spaces_out_what_exceeds_a_second(monkeypatch):
    """Five a second: the first second's worth is free, then one every 0.2 s."""
    now, waits = [1000.0], []

    async def sleep(seconds):
        waits.append(round(seconds, 6))

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def scenario():
        limit = RateLimit(300)
        for _ in range(8):
            await limit.spend(1)

    coroutine = scenario()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert [wait for wait in waits if wait] == [0.2, 0.4]


def test_retry_after_is_read_in_all_its_forms():
    from email.utils import formatdate

    assert retry_after_seconds({"retry-after": "3"}) == 3.0
    assert retry_after_seconds({"retry-after-ms": "250", "retry-after": "3"}) == 0.25
    assert retry_after_seconds({"retry-after": "soon"}) is None
    assert retry_after_seconds({}) is None
    date = formatdate(time.time() + 30, usegmt=True)
    assert 25 < retry_after_seconds({"retry-after": date}) <= 31


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="max_concurrency"):
        OpenAIClient("http://x", "m", max_concurrency=0)
    with pytest.raises(ValueError, match="max_error_fraction"):
        OpenAIClient("http://x", "m", max_error_fraction=2)
    with pytest.raises(ValueError, match="'telepathy'"):
        OpenAIClient("http://x", "m", extra_capabilities=["telepathy"])
    with pytest.raises(CapabilityError, match="first-token"):
        OpenAIClient("http://x", "m").generate(["a"], GenerationParams(banned_first_token_ids=(1,)))
