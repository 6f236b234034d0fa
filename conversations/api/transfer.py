"""The routes under `/api/v1/` by which conversations leave and come as files."""

from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Any
from uuid import UUID

from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from conversations import access, actions, errors
from conversations.api import serializers as shapes
from conversations.api.parsers import Unread
from conversations.api.views import ABSENT, REFUSED, View
from conversations.transfer import exporting, files, markdown
from conversations.transfer.importing import Imported
from conversations.transfer.names import file_name

JSON, MARKDOWN = "json", "markdown"
FILE = OpenApiResponse(OpenApiTypes.OBJECT, description="A file; its format is in docs/export.md.")
AS = OpenApiParameter("as", str, enum=[JSON, MARKDOWN], description="Everything, to be imported; or what is shown.")
PIECE = 1024 * 1024  # bytes
FORMS = ("multipart/", "application/x-www-form-urlencoded")


class ImportedOutput(serializers.Serializer[Any]):
    imported = serializers.IntegerField(help_text="Conversations that are new.")
    presets = serializers.IntegerField(help_text="Presets that are new: those whose name one has are left alone.")
    already = serializers.IntegerField(help_text="Conversations of the file that were here before.")
    conversations = serializers.ListField(child=serializers.UUIDField(), help_text="The new ones, as in the file.")
    detail = serializers.CharField(help_text="The same as a sentence.")


class ImportRefusedOutput(shapes.ProblemOutput):
    place = serializers.CharField(
        required=False, help_text="With code `import_refused`: where in the file; empty for all of it."
    )


class ExportOne(View):
    @extend_schema(
        operation_id="conversations_export",
        parameters=[AS],
        responses={
            (200, "application/json"): FILE,
            (200, "text/markdown"): OpenApiTypes.STR,
            **REFUSED,
            **ABSENT,
        },
    )
    def get(self, request: Request, id_: UUID) -> HttpResponseBase:
        """A conversation as a file: as JSON with all its branches, or the path that is shown as Markdown."""
        where = access.conversation(self.person, id_)
        asked = request.query_params.get("as", JSON)
        if asked == MARKDOWN:
            name = file_name(where.title, "md")
            return HttpResponse(markdown.of(where), content_type="text/markdown; charset=utf-8", headers=_named(name))
        if asked != JSON:
            sentence = f"as must be {JSON} or {MARKDOWN}."
            raise errors.Invalid(sentence, errors={"as": [sentence]})
        return _file(exporting.document(access.owned_by(self.person).filter(pk=id_)), file_name(where.title, "json"))


class ExportAll(View):
    @extend_schema(operation_id="export", responses={(200, "application/json"): FILE, **REFUSED})
    def get(self, request: Request) -> HttpResponseBase:
        """All of one's conversations as one file, archived ones too, and one's presets."""
        name = file_name(f"Conversations {timezone.now():%Y-%m-%d}", "json")
        own = access.presets(self.person).filter(owner=self.person)
        return _file(exporting.document(access.owned_by(self.person), own), name)


class Import(View):
    parser_classes = (Unread,)

    @extend_schema(
        operation_id="import",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={
            200: ImportedOutput,
            **REFUSED,
            400: ImportRefusedOutput,
            408: shapes.ProblemOutput,
            413: shapes.ProblemOutput,
            429: shapes.TryLaterOutput,
        },
    )
    def post(self, request: Request) -> Response:
        """Import conversations: the body is the file, of this site's JSON or of an export of llama-server's own page.

        All of it is imported, or nothing and the answer says where in the file something is wrong. What is here
        already is not imported again. At most 32 MiB, within five minutes; code `busy` while
        others are imported.
        """
        if (request.content_type or "").startswith(FORMS):
            raise errors.Malformed("not_a_file", "Send the file itself as the body, not a form with it.")
        with TemporaryFile() as file:
            _receive(request, file)
            done = actions.import_file(self.person, file)
        return Response(_answer(done))


def _receive(request: Request, file: IO[bytes]) -> None:
    """Write the body into `file`, piece by piece. Raises FileTooLarge."""
    size = 0
    while piece := (request.stream.read(PIECE) if request.stream else b""):
        size += len(piece)
        if size > files.LARGEST:
            raise errors.FileTooLarge(f"A file may have {files.LARGEST:,} bytes; this one has more.")
        file.write(piece)
    file.flush()
    file.seek(0)


def _answer(done: Imported) -> dict[str, Any]:
    new, already = len(done.conversations), done.already
    came = [_counted(count, name) for count, name in ((new, "conversation"), (done.presets, "preset")) if count]
    said = f"{' and '.join(came)} {_were(new + done.presets)} imported." if came else "Nothing new was imported."
    if already:
        said += f" {_counted(already, 'conversation')} {_were(already)} here already."
    if done.left_out:
        left = f"{_counted(done.left_out, 'preset')} {_were(done.left_out)}"
        said += f" {left} left out: such names are taken, or there are as many as one may have."
    return {
        "imported": new, "presets": done.presets, "already": already,
        "conversations": list(map(str, done.conversations)), "detail": said,
    }  # fmt: skip


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _file(document: Iterator[str], name: str) -> StreamingHttpResponse:
    connection.close()  # this request lives as long as the other end takes to read
    return StreamingHttpResponse(exporting.stream(document), content_type="application/json", headers=_named(name))


def _named(name: str) -> dict[str, str]:
    return {"Content-Disposition": content_disposition_header(True, name) or "", "Cache-Control": "no-store"}
