"""Talking to models: one protocol for local models, endpoints, vLLM and scripts."""

from ritornello.common.chat.cache import AnswerStore, CachedClient, ReplayClient
from ritornello.common.chat.endpoint import OpenAIClient, RetryPolicy, check_server
from ritornello.common.chat.fake_server import FakeServer, Fault
from ritornello.common.chat.journal import Journal, RunLockedError, read_records
from ritornello.common.chat.local import TransformersClient
from ritornello.common.chat.protocol import (
    CapabilityError,
    ChatClient,
    ChatError,
    Completion,
    ContextLengthError,
    ContinuationScores,
    EndpointError,
    ErrorBudgetExceeded,
    GenerationParams,
    Image,
    Message,
    Prompt,
    PromptLike,
    Text,
    Usage,
    as_prompt,
    replicates,
    request_seed,
)
from ritornello.common.chat.scripted import Flaky, ScriptedClient
from ritornello.common.chat.vllm import VLLMClient

__all__ = [
    "AnswerStore",
    "CachedClient",
    "CapabilityError",
    "ChatClient",
    "ChatError",
    "Completion",
    "ContextLengthError",
    "ContinuationScores",
    "EndpointError",
    "ErrorBudgetExceeded",
    "FakeServer",
    "Fault",
    "Flaky",
    "GenerationParams",
    "Image",
    "Journal",
    "Message",
    "OpenAIClient",
    "Prompt",
    "PromptLike",
    "ReplayClient",
    "RetryPolicy",
    "RunLockedError",
    "ScriptedClient",
    "Text",
    "TransformersClient",
    "Usage",
    "VLLMClient",
    "as_prompt",
    "check_server",
    "read_records",
    "replicates",
    "request_seed",
]
