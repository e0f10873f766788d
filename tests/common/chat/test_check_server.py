"""A served model is asked once before the work begins."""

from functools import partial

import pytest

from ritornello.common.chat import FakeServer, Fault, OpenAIClient, ScriptedClient, check_server
from ritornello.common.errors import UserError


def echo_client():
    return ScriptedClient(lambda prompt, params: "here")


def test_a_server_that_cannot_be_asked_is_told_before_the_work():
    def teacher(client):
        raise AssertionError("nothing is built")

    with FakeServer(echo_client()) as server:
        loader = partial(OpenAIClient, server.base_url, model="fake")
        check_server(partial(teacher, client=loader))
        assert [request.body["max_tokens"] for request in server.requests] == [1]
    with pytest.raises(UserError, match=f"cannot be asked.*{server.base_url}.*Connection error"):
        check_server(loader)
    unknown = FakeServer(echo_client(), misbehave=lambda n, body: Fault("status", 404))
    with unknown as server, pytest.raises(UserError, match="fake answered 404"):
        check_server(partial(OpenAIClient, server.base_url, model="fake"))
    check_server(teacher)
