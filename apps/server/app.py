"""The application: routes behind the guard, errors in each API's form, the model loaded in the background."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi import Request as Http
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import edgert

from . import anthropic, errors, native, ollama, openai_chat, openai_completions, openai_embeddings, openai_responses
from .options import Options
from .security import Guard
from .state import State
from .web import add_page

PARTS = (native, openai_chat, openai_completions, openai_responses, openai_embeddings, anthropic, ollama)


class Application:
    """The server's state and its ASGI application. failed: called with the error if the first model cannot be loaded;
    started: when it can answer."""

    def __init__(self, options: Options, started: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self.state = State(options)
        self._started, self._failed = started, failed
        app = FastAPI(title="edgert", docs_url=None, redoc_url=None, lifespan=self._lifespan)
        app.state.server = self.state
        for part in PARTS:
            app.include_router(part.router)
        for kind in (errors.ApiError, edgert.EdgertError, edgert.FormatError, RequestValidationError, HTTPException,
                     Exception):  # fmt: skip
            app.add_exception_handler(kind, _tell)
        add_page(app)
        self.app = app
        self.asgi = Guard(app, options, lambda: self.state.draining)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(self._warm())
        try:
            yield
        finally:
            warming.cancel()
            await self.state.close()

    async def _warm(self) -> None:
        try:
            await self.state.warm()
            self._started()
        except Exception as error:
            self._failed(error)


async def _tell(http: Http, error: Exception) -> Response:
    return errors.response(http.url.path, errors.api_error(error))
