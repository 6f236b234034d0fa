"""The routes under `/api/v1/` by which conversations leave and come as files."""

from collections.abc import Iterator
from uuid import UUID

from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request

from conversations import access, errors
from conversations.api.views import ABSENT, REFUSED, View
from conversations.transfer import exporting, markdown
from conversations.transfer.names import file_name

JSON, MARKDOWN = "json", "markdown"
FILE = OpenApiResponse(OpenApiTypes.OBJECT, description="A file; its format is in docs/export.md.")
AS = OpenApiParameter("as", str, enum=[JSON, MARKDOWN], description="Everything, to be imported; or what is shown.")


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
        """All of one's conversations as one file, archived ones too."""
        name = file_name(f"Conversations {timezone.now():%Y-%m-%d}", "json")
        return _file(exporting.document(access.owned_by(self.person)), name)


def _file(document: Iterator[str], name: str) -> StreamingHttpResponse:
    connection.close()  # this request lives as long as the other end takes to read
    return StreamingHttpResponse(exporting.stream(document), content_type="application/json", headers=_named(name))


def _named(name: str) -> dict[str, str]:
    return {"Content-Disposition": content_disposition_header(True, name) or "", "Cache-Control": "no-store"}
