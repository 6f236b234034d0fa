"""The routes under `/api/v1/`."""

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from chatbackend.accounts.models import User
from conversations import access, actions, frames, history, rereading, served
from conversations.api import pagination, sse
from conversations.api import serializers as shapes
from conversations.fields import Strict
from conversations.models import Generation

PAGE = [
    OpenApiParameter("cursor", str, description="From `next` of the page before."),
    OpenApiParameter("limit", int, description=f"At most {pagination.MOST}; {pagination.DEFAULT} if left out."),
]
ARCHIVED = OpenApiParameter("archived", bool, description="Those that are archived, which are left out otherwise.")
HTML = OpenApiParameter("html", bool, description="Give each answer as safe HTML, too.")
ACCEPTED: dict[Any, Any] = {
    (202, "application/json"): shapes.SentOutput,
    (200, sse.MEDIA_TYPE): OpenApiResponse(OpenApiTypes.STR, description=sse.__doc__ or ""),
}
REFUSED: dict[int, Any] = {
    400: shapes.ProblemOutput,
    401: shapes.ProblemOutput,
    403: shapes.ProblemOutput,
    503: shapes.ProblemOutput,
}
MOST_DIGITS = 10  # of a `seq`
ABSENT = {404: shapes.ProblemOutput}
# Of what begins a turn.
ASKED = {
    **ACCEPTED,
    409: shapes.TurnInProgressOutput,
    413: shapes.TooLongOutput,
    429: shapes.TryLaterOutput,
    **REFUSED,
    **ABSENT,
}


class View(APIView):
    """`person` is who asks; ids in paths are those of `<…:id_>`."""

    @property
    def person(self) -> int:
        user = self.request.user
        assert isinstance(user, User)
        return user.pk


class Conversations(View):
    @extend_schema(
        operation_id="conversations_list",
        parameters=[*PAGE, ARCHIVED],
        responses={200: shapes.ConversationPage, **REFUSED},
    )
    def get(self, request: Request) -> Response:
        """One's conversations: pinned ones first, then the others, each newest first."""
        return Response(pagination.conversations(request, access.owned_by(self.person)))

    @extend_schema(
        operation_id="conversations_create",
        request=shapes.ConversationInput,
        responses={201: shapes.ConversationOutput, **REFUSED},
    )
    def post(self, request: Request) -> Response:
        """Begin a conversation, also with what a preset has; every field may be left out."""
        made = actions.create(self.person, checked(shapes.ConversationInput, request))
        return Response(frames.conversation(made), status=status.HTTP_201_CREATED)


class OneConversation(View):
    @extend_schema(
        operation_id="conversations_retrieve", responses={200: shapes.ConversationOutput, **REFUSED, **ABSENT}
    )
    def get(self, request: Request, id_: UUID) -> Response:
        return Response(frames.conversation(access.conversation(self.person, id_)))

    @extend_schema(
        operation_id="conversations_update",
        request=shapes.ConversationChange,
        responses={200: shapes.ConversationOutput, **REFUSED, **ABSENT},
    )
    def patch(self, request: Request, id_: UUID) -> Response:
        """Change the fields that are sent, and of `params` those in it; the next answers follow them.

        An answer that is asked for already is made with what there was. With another system prompt or model, and with
        some templates for another `thinking`, the next turn reads the whole conversation again.
        """
        before = access.conversation(self.person, id_)
        changed = actions.change(self.person, id_, checked(shapes.ConversationChange, request, before=before))
        return Response(frames.conversation(changed))

    @extend_schema(operation_id="conversations_destroy", responses={204: None, **REFUSED, **ABSENT})
    def delete(self, request: Request, id_: UUID) -> Response:
        """Delete it with all its messages; an answer being written is stopped.

        It is gone for everybody at once, can be restored for 30 seconds, and is then removed for good.
        """
        actions.delete(self.person, id_)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Restore(View):
    @extend_schema(
        operation_id="conversations_restore",
        request=None,
        responses={200: shapes.ConversationOutput, **REFUSED, **ABSENT},
    )
    def post(self, request: Request, id_: UUID) -> Response:
        """Undo a deletion within its 30 seconds; what was being written stays stopped."""
        return Response(frames.conversation(actions.restore(self.person, id_)))


class Messages(View):
    renderer_classes = (JSONRenderer, sse.EventStreamRenderer)

    @extend_schema(
        operation_id="messages_list",
        parameters=[*PAGE, HTML],
        responses={200: shapes.MessagePage, **REFUSED, **ABSENT},
    )
    def get(self, request: Request, id_: UUID) -> Response:
        """The newest messages of the active path, oldest first; `next` leads to those before."""
        return Response(pagination.messages(request, access.conversation(self.person, id_)))

    @extend_schema(
        operation_id="messages_send",
        request=shapes.SendInput,
        responses=ASKED,
    )
    def post(self, request: Request, id_: UUID) -> HttpResponseBase:
        """Send a message; its answer is queued. With `Accept: text/event-stream` the answer is streamed."""
        access.conversation(self.person, id_)
        fields = checked(shapes.SendInput, request)
        sent = actions.send(
            self.person, id_, fields["client_id"], fields["text"], fields.get("parent"), "parent" not in fields,
            fields.get("branch", True),
        )  # fmt: skip
        return _accepted(request, sent)


class Edit(View):
    renderer_classes = (JSONRenderer, sse.EventStreamRenderer)

    @extend_schema(
        operation_id="messages_edit_cost",
        parameters=[shapes.EditPlanned],
        responses={200: shapes.CostOutput, **REFUSED, **ABSENT},
    )
    def get(self, request: Request, id_: UUID) -> Response:
        """What an edit of one's message would cost: how much the model reads, probably, and how long that takes."""
        question = access.message(self.person, id_)
        planned = shapes.EditPlanned(data=request.query_params)
        planned.is_valid(raise_exception=True)
        where = access.conversation(self.person, question.conversation_id)
        return Response(frames.cost(rereading.of_edit(where, question, **planned.validated_data)))

    @extend_schema(
        operation_id="messages_edit",
        request=shapes.EditInput,
        responses=ASKED,
    )
    def post(self, request: Request, id_: UUID) -> HttpResponseBase:
        """Say something else in place of one's message; its answer is queued.

        What was said stays, with all that followed, as another version, and the conversation goes on from the new one.
        With `Accept: text/event-stream` the answer is streamed.
        """
        access.message(self.person, id_)
        fields = checked(shapes.EditInput, request)
        return _accepted(request, actions.edit(self.person, id_, fields["client_id"], fields["text"]))


class ShowVersion(View):
    @extend_schema(
        operation_id="messages_show",
        request=None,
        responses={200: shapes.ConversationOutput, 409: shapes.TurnInProgressOutput, **REFUSED, **ABSENT},
    )
    def post(self, request: Request, id_: UUID) -> Response:
        """Go on from this version of a message, with what followed it last; on every device that shows it."""
        return Response(frames.conversation(actions.show_version(self.person, id_)))


class Regenerate(View):
    renderer_classes = (JSONRenderer, sse.EventStreamRenderer)

    @extend_schema(
        operation_id="messages_regenerate",
        request=shapes.RegenerateInput,
        responses=ASKED,
    )
    def post(self, request: Request, id_: UUID) -> HttpResponseBase:
        """Ask the model for another answer to the same message.

        Named is the answer; it stays, and the conversation goes on from the new one. Returned are the message that is
        answered and the new generation; with `Accept: text/event-stream` the answer is streamed.
        """
        access.message(self.person, id_)
        fields = checked(shapes.RegenerateInput, request)
        return _accepted(request, actions.regenerate(self.person, id_, fields["client_id"]))


class Search(View):
    @extend_schema(
        operation_id="search",
        parameters=[
            OpenApiParameter("q", str, required=True, description="Words, or phrases in double quotes."),
            *PAGE,
        ],
        responses={200: shapes.SearchPage, **REFUSED},
    )
    def get(self, request: Request) -> Response:
        """One's conversations in which all of `q` was said in one message, or is in the title; newest first.

        Found anywhere in a word, without regard to accents and capitals.
        """
        return Response(pagination.found(request, self.person))


class OneGeneration(View):
    @extend_schema(operation_id="generations_retrieve", responses={200: shapes.GenerationOutput, **REFUSED, **ABSENT})
    def get(self, request: Request, id_: UUID) -> Response:
        """How far it is, with the text so far."""
        return Response(frames.generation(history.generation(access.generation(self.person, id_))))


class CancelGeneration(View):
    @extend_schema(
        operation_id="generations_cancel",
        request=None,
        responses={200: shapes.GenerationOutput, **REFUSED, **ABSENT},
    )
    def post(self, request: Request, id_: UUID) -> Response:
        """Stop it: at once while it waits, within moments while it runs. What was written stays."""
        return Response(frames.generation(actions.cancel(self.person, id_)))


class GenerationEvents(View):
    renderer_classes = (JSONRenderer, sse.EventStreamRenderer)

    @extend_schema(
        operation_id="generations_events",
        parameters=[
            OpenApiParameter(
                "Last-Event-ID",
                int,
                OpenApiParameter.HEADER,
                description="`seq` of the last event that the client has.",
            )
        ],
        responses={
            (200, sse.MEDIA_TYPE): OpenApiResponse(OpenApiTypes.STR, description=sse.__doc__ or ""),
            204: OpenApiResponse(description="The client has all of it, its end too."),
            **REFUSED,
            **ABSENT,
        },
    )
    def get(self, request: Request, id_: UUID) -> HttpResponseBase:
        """Its events to its end, from a snapshot on or from where the client is."""
        found = access.generation(self.person, id_)
        last = request.headers.get("Last-Event-ID", "")
        after = int(last) if last.isascii() and last.isdecimal() and len(last) < MOST_DIGITS else None
        if after == found.seq and found.status not in Generation.LIVE:
            return HttpResponse(status=status.HTTP_204_NO_CONTENT)  # a browser would ask again and again
        return sse.response(sse.answer_from(client(request), found, after))


class ContinueGeneration(View):
    renderer_classes = (JSONRenderer, sse.EventStreamRenderer)

    @extend_schema(
        operation_id="generations_continue",
        request=shapes.ContinueInput,
        responses=ASKED,
    )
    def post(self, request: Request, id_: UUID) -> HttpResponseBase:
        """Ask the model to go on with an answer that ended too early.

        That is one which was stopped, failed or was interrupted with something written, or came to its limit of
        tokens, and after which nothing was said. The new generation adds to the same message. With
        `Accept: text/event-stream` what is added is streamed.
        """
        access.generation(self.person, id_)
        fields = checked(shapes.ContinueInput, request)
        return _accepted(request, actions.continue_answer(self.person, id_, fields["client_id"]))


class Models(View):
    @extend_schema(operation_id="models_list", responses={200: shapes.ModelOutput(many=True), **REFUSED})
    def get(self, request: Request) -> Response:
        """The models that are served, by name, with how busy they are."""
        return Response(shapes.ModelOutput(served.served(), many=True).data)


def checked(shape: type[Strict], request: Request, **context: Any) -> dict[str, Any]:
    """The body's fields, as `shape` has them. Raises ValidationError."""
    body = shape(data=request.data, context=context)
    body.is_valid(raise_exception=True)
    fields: dict[str, Any] = body.validated_data
    return fields


def client(request: Request) -> sse.Client:
    """Who asks, by which session."""
    assert isinstance(request.user, User)
    return sse.Client(request.user.pk, str(request.auth or request.session.session_key or ""))


def _accepted(request: Request, sent: actions.Sent) -> HttpResponseBase:
    if getattr(request, "accepted_media_type", "").startswith(sse.MEDIA_TYPE):
        return sse.response(sse.answer(client(request), sent))
    body = {"message": frames.message(sent.message), "generation": frames.generation(sent.generation)}
    return Response(body, status=status.HTTP_202_ACCEPTED)
