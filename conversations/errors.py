"""What can go wrong for a person, each with a code, a sentence and whether trying again can help.

Mapped once for REST (`conversations.api.errors`) and once for the websocket (`conversations.consumer`).
"""

from typing import Any


class ChatError(Exception):
    """`detail` is the sentence; `more` are further fields of the error body."""

    code = "error"
    status = 400
    retryable = False
    detail = "The request cannot be done."

    def __init__(self, detail: str | None = None, **more: Any) -> None:
        super().__init__(detail or self.detail)
        self.detail = detail or self.detail
        self.more = more

    def body(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail, "retryable": self.retryable, **self.more}


class NotFound(ChatError):
    """It does not exist, or belongs to somebody else: the same answer for both."""

    code = "not_found"
    status = 404
    detail = "There is nothing with this id."


class Invalid(ChatError):
    code = "invalid"


class Malformed(Invalid):
    """It could not even be read; the code says at which step."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class ImportRefused(Invalid):
    """Nothing of the file was imported. `place` says where in it something is wrong."""

    code = "import_refused"


class FileTooLarge(ImportRefused):
    code = "too_large"
    status = 413


class ImportUnderWay(ChatError):
    """`retry_after`: seconds."""

    code = "busy"
    status = 429
    retryable = True
    detail = "Another file is being imported at the moment: try again when it is done."


class TextEmpty(ChatError):
    code = "text_empty"
    detail = "The message is empty: write something first."


class TextTooLong(ChatError):
    code = "text_too_long"
    status = 413


class ContextExceeded(ChatError):
    """`prompt_tokens` of the question alone with its system prompt, and `n_ctx`, what the model can read."""

    code = "context_exceeded"
    status = 413


class ParentUnknown(ChatError):
    code = "parent_unknown"
    detail = "parent must be the id of an answer in this conversation, or null for a first message."


class ParentStale(ChatError):
    """Carries the `messages` newer than the parent that the client named."""

    code = "parent_stale"
    status = 409
    detail = "The conversation went on meanwhile, in another tab or device: read what is new, then send it again."


class NotAnAnswer(ChatError):
    code = "not_an_answer"
    detail = "Only an answer can be written again: name the id of an answer, not that of a person's message."


class CannotContinue(ChatError):
    """The sentence says why. Carries the `messages` newer than the answer where that is what is in the way."""

    code = "cannot_continue"
    status = 409


class NotAQuestion(ChatError):
    code = "not_a_question"
    detail = "Only a person's message can be said otherwise: name its id, not that of an answer."


class ClientIdReused(ChatError):
    code = "client_id_reused"
    status = 409
    detail = "This client_id was used for another message: give each message its own."


class TurnInProgress(ChatError):
    """Carries `generation` and the `messages` newer than the parent that the client named."""

    code = "turn_in_progress"
    status = 409
    retryable = True
    detail = "An answer is still being written in this conversation: wait for it or stop it."


class ReadOnly(ChatError):
    code = "read_only"
    status = 403
    detail = "This preset is for everybody, and only its owner can change it: save one of your own."


class TooManyWaiting(ChatError):
    """Of one person. `retry_after`: seconds until one of them has probably begun."""

    code = "too_many_waiting"
    status = 429
    retryable = True


class QueueFull(ChatError):
    """Of everybody together. `retry_after`: seconds until somebody's turn has probably begun."""

    code = "queue_full"
    status = 429
    retryable = True


class NotSignedIn(ChatError):
    code = "not_signed_in"
    status = 401
    detail = "Sign in first: send the session cookie or a session token."


class Unavailable(ChatError):
    """Postgres is away. What was sent may or may not have been stored: repeat it with the same client_id."""

    code = "unavailable"
    status = 503
    retryable = True
    detail = "The database does not answer at the moment: try again in a few seconds."


class Broken(Unavailable):
    """A fault of ours on the way to Postgres; the log has it."""

    code = "internal"
    status = 500
    detail = "Something went wrong here; it is in the server's log."


class TooMany(ChatError):
    """A limit of one socket."""

    code = "too_many"
    status = 429
    retryable = True
