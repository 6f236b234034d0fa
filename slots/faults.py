"""What a llama-server can do wrong, each with a sentence for people and, where there is one, the cure."""

ROUTER = "Start one llama-server per model, with -m, and name each by its own address."
KEY = "Give the key it was started with (--api-key) in its address: http://:KEY@host:8080."
NOTHING = "Start llama-server there, or correct the address."
LOADING = "Wait until it has loaded its model."


class ServerError(Exception):
    """What a llama-server did wrong, as a sentence; `code` and `retryable` as in the API's errors.

    `status` is that of its answer, 0 if there was none; `cure` what whoever runs it can do.
    """

    code = "server_error"
    retryable = True

    def __init__(self, sentence: str, *, status: int = 0, cure: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.cure = cure


class ServerUnreachable(ServerError):
    """Nothing was sent, or nothing of it arrived: no connection, or the model is still loading."""

    code = "server_unreachable"


class ServerFailed(ServerError):
    """It answered with a 5xx, sent an error instead of text, or what it sent is no llama-server's answer."""

    code = "server_failed"


class ServerRefused(ServerError):
    """It understood the request and said no (4xx): the same request will be refused again."""

    code = "server_refused"
    retryable = False


class ContextExceeded(ServerRefused):
    """The prompt has more tokens than a slot holds."""

    code = "context_exceeded"

    def __init__(self, sentence: str, prompt_tokens: int | None, n_ctx: int | None) -> None:
        super().__init__(sentence, status=400)
        self.prompt_tokens = prompt_tokens
        self.n_ctx = n_ctx


class StreamBroken(ServerError):
    """The stream ended, or fell silent, without having said that it is done."""

    code = "stream_broken"


class StreamUnknown(ServerError):
    """The server has no such stream, or no longer the bytes asked for."""

    code = "stream_unknown"
