"""A server on this machine that speaks the OpenAI protocol, well or badly, over a real socket.

It answers through any chat client (a script, a local model, a quietly quantised one) and can be
told to throttle, fail, hang, cut a body short, send nonsense or drop the connection.

>>> from ritornello.common.chat import GenerationParams, OpenAIClient, ScriptedClient
>>> with FakeServer(ScriptedClient(lambda prompt, params: "Paris.")) as server:
...     client = OpenAIClient(server.base_url, "any")
...     client.generate(["The capital of France is "], GenerationParams())[0].text
'Paris.'
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from ritornello.common.chat.protocol import (
    ChatClient,
    Completion,
    GenerationParams,
    Image,
    Message,
    Prompt,
    Text,
)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    Args:
        kind: "status" answers with an HTTP error, "hang" waits `seconds` and drops the connection,
            "delay" waits and then answers, "cut" ends the body half way, "garbage" sends a body
            that is no JSON, "body" sends `body`, "drop" closes the connection at once.
        status: HTTP status of kind "status".
        body: what "body" sends as JSON with status 200, and "status" in place of `message`.
        message: its error message.
        headers: further headers, e.g. {"Retry-After": "1"}.
        seconds: how long "hang" and "delay" wait.
    """

    kind: Literal["status", "hang", "delay", "cut", "garbage", "body", "drop"]
    status: int = 500
    body: object = None
    message: str = "server fault"
    headers: Mapping[str, str] | None = None
    seconds: float = 3600.0


@dataclass(frozen=True)
class Received:
    """One request as the server saw it."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    time_seconds: float


Misbehave = Callable[[int, dict[str, Any]], Fault | None]
Echo = Callable[[str], list[tuple[str, float, dict[str, float] | None]]]


class FakeServer:
    """Serves `client` at `base_url` while the `with` block runs.

    Args:
        client: answers the requests.
        misbehave: called with (number of the request, body); a returned fault replaces the answer.
        echo: tokens of a text, each with its log-probability and the most probable alternatives
            (None hides them), for completions with `echo`. As on real servers the first token,
            which follows nothing, is sent without any.
    """

    def __init__(
        self, client: ChatClient, *, misbehave: Misbehave | None = None, echo: Echo | None = None
    ) -> None:
        self.requests: list[Received] = []
        self.most_at_once = 0
        self.base_url = ""
        self._client = client
        self._misbehave = misbehave or (lambda number, body: None)
        self._echo = echo
        self._running = 0
        self._model_lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._open: set[asyncio.Task] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while (request := await _read_request(reader)) is not None:
                self._running += 1
                self.most_at_once = max(self.most_at_once, self._running)
                try:
                    stays_open = await self._respond(request, writer)
                finally:
                    self._running -= 1
                if not stays_open:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _respond(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        """Answers or misbehaves; False ends the connection."""
        number = len(self.requests)
        self.requests.append(request)
        fault = self._misbehave(number, request.body)
        if fault is None or fault.kind == "delay":
            if fault is not None:
                await asyncio.sleep(fault.seconds)
            status, body = await self._loop.run_in_executor(None, self._answer, request)
            return await _write(writer, status, json.dumps(body).encode())
        if fault.kind == "status":
            error = {"error": {"message": fault.message, "type": "fake", "code": fault.status}}
            body = json.dumps(fault.body or error).encode()
            return await _write(writer, fault.status, body, fault.headers)
        if fault.kind == "body":
            return await _write(writer, 200, json.dumps(fault.body).encode())
        if fault.kind == "garbage":
            return await _write(writer, 200, b'{"choices": [oops')
        if fault.kind == "hang":
            await asyncio.sleep(fault.seconds)
        if fault.kind == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b'Content-Length: 1000\r\n\r\n{"id": "cut", "choices": [{"ind')
            await writer.drain()
        return False

    def _answer(self, request: Received) -> tuple[int, dict[str, Any]]:
        body = request.body
        try:
            if body.get("echo"):
                return 200, self._echo_body(body["prompt"])
            chat = request.path.endswith("/chat/completions")
            prompt = _prompt(body, chat=chat)
            # a local model is one: its requests go one after the other
            with self._model_lock:
                completion = self._client.generate([prompt], _params(body))[0]
        except Exception as error:
            return 400, {"error": {"message": f"{type(error).__name__}: {error}"}}
        return 200, _response(completion, body, chat=chat)

    def _echo_body(self, text: str) -> dict[str, Any]:
        if self._echo is None:
            raise ValueError("this server does not echo log-probabilities")
        tokens = self._echo(text)
        offsets, position = [], 0
        for token, *_ in tokens:
            offsets.append(position)
            position += len(token)
        logprobs = {
            "tokens": [token for token, *_ in tokens],
            "token_logprobs": [None, *(value for _, value, _ in tokens[1:])],
            "top_logprobs": [None, *(best for *_, best in tokens[1:])],
            "text_offset": offsets,
        }
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": logprobs}
        return {"id": "fake", "object": "text_completion", "created": 0, "model": "fake"} | {
            "choices": [choice]
        }


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    line = await reader.readline()
    if not line:
        return None
    path = line.decode().split(" ")[1]
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(path, json.loads(raw or b"{}"), headers, time.monotonic())


async def _write(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
) -> bool:
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return True


def _prompt(body: dict[str, Any], *, chat: bool) -> Prompt:
    # the seed stands for the replicate: the same request draws the same answer
    if not chat:
        return Prompt(text=body["prompt"], sample=body.get("seed") or 0)
    messages = [Message(m["role"], _parts(m["content"])) for m in body["messages"]]
    prefill = messages.pop().text if body.get("continue_final_message") else ""
    return Prompt(tuple(messages), prefill=prefill, sample=body.get("seed") or 0)


def _parts(content: str | list[dict[str, Any]]) -> str | list[Text | Image]:
    if isinstance(content, str):
        return content
    return [
        Text(part["text"])
        if part["type"] == "text"
        else Image(part["image_url"]["url"].encode(), "text/uri-list")
        for part in content
    ]


def _params(body: dict[str, Any]) -> GenerationParams:
    wanted = body.get("logprobs")
    logprobs = body.get("top_logprobs", 0) if wanted is True else wanted
    stop = body.get("stop") or ()
    return GenerationParams(
        max_tokens=body.get("max_tokens") or 256,
        temperature=body.get("temperature", 1.0),
        top_p=body.get("top_p", 1.0),
        top_k=body.get("top_k", 0),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(body.get("stop_token_ids", ())),
        logprobs=None if wanted in (None, False) else logprobs,
    )


def _response(completion: Completion, body: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    usage = completion.usage
    shared = {
        "id": "fake",
        "created": 0,
        "model": body.get("model", "fake"),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    choice: dict[str, Any] = {"index": 0, "finish_reason": completion.finish_reason}
    values = completion.logprobs
    best = completion.top_logprobs or ({},) * len(values or ())
    if chat:
        choice["message"] = {"role": "assistant", "content": completion.text}
        if values is not None:
            choice["logprobs"] = {"content": _token_logprobs(values, best)}
        return shared | {"object": "chat.completion", "choices": [choice]}
    choice["text"] = completion.text
    if values is not None:
        choice["logprobs"] = {"token_logprobs": list(values), "top_logprobs": list(map(dict, best))}
    return shared | {"object": "text_completion", "choices": [choice]}


def _token_logprobs(values: tuple[float, ...], best: tuple) -> list[dict[str, Any]]:
    return [
        {
            "token": "",
            "logprob": value,
            "top_logprobs": [{"token": t, "logprob": v} for t, v in tops.items()],
        }
        for value, tops in zip(values, best, strict=True)
    ]
