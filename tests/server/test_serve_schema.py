"""Whatever a client sends by the OpenAPI document, or against it: never a fault of the server's."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from serving import Server

pytestmark = pytest.mark.filterwarnings("ignore")  # of schemathesis itself
MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
EXAMPLES = 10  # of each route and mode


def test_every_route(server: Server) -> None:
    """Bodies that fit the document and bodies that do not."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        seen.add(operation.path)
        for mode in MODES if operation.method == "post" else MODES[:1]:
            check(operation, mode)
    assert {"/v1/chat/completions", "/v1/messages", "/api/generate", "/tokenize", "/health"} <= seen


def check(operation: Any, mode: Any) -> None:
    """Send some requests to one route; answers are kept short where their length may be chosen."""

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)
            for name in LIMITS:
                if isinstance(case.body.get(name), int):
                    case.body[name] = min(case.body[name], 8)
        case.call_and_validate(checks=[not_a_server_error], timeout=120)

    send()
