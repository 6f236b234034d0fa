"""The routes under `/api/v1/presets/`."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from conversations import access, frames, presets
from conversations.api import serializers as shapes
from conversations.api.views import ABSENT, REFUSED, View, checked
from conversations.models import Preset


class PresetView(View):
    def shown(self, row: Preset) -> frames.Frame:
        return frames.preset(row, access.may_change(row, self.person))


class Presets(PresetView):
    @extend_schema(operation_id="presets_list", responses={200: shapes.PresetOutput(many=True), **REFUSED})
    def get(self, request: Request) -> Response:
        """One's own by name, then those for everybody."""
        return Response([self.shown(row) for row in presets.listed(self.person)])

    @extend_schema(
        operation_id="presets_create",
        request=shapes.PresetInput,
        responses={201: shapes.PresetOutput, **REFUSED},
    )
    def post(self, request: Request) -> Response:
        """Save what conversations can begin with: `POST conversations/ {"preset": id}`."""
        made = presets.create(self.person, checked(shapes.PresetInput, request))
        return Response(self.shown(made), status=status.HTTP_201_CREATED)


class OnePreset(PresetView):
    @extend_schema(operation_id="presets_retrieve", responses={200: shapes.PresetOutput, **REFUSED, **ABSENT})
    def get(self, request: Request, id_: UUID) -> Response:
        return Response(self.shown(access.preset(self.person, id_)))

    @extend_schema(
        operation_id="presets_update",
        request=shapes.PresetChange,
        responses={200: shapes.PresetOutput, **REFUSED, **ABSENT},
    )
    def patch(self, request: Request, id_: UUID) -> Response:
        """Change the fields that are sent, and of `params` those in it; no conversation changes by that."""
        before = access.own_preset(self.person, id_)
        changed = presets.change(self.person, id_, checked(shapes.PresetChange, request, before=before))
        return Response(self.shown(changed))

    @extend_schema(operation_id="presets_destroy", responses={204: None, **REFUSED, **ABSENT})
    def delete(self, request: Request, id_: UUID) -> Response:
        """Remove it; what began with it stays as it is."""
        presets.delete(self.person, id_)
        return Response(status=status.HTTP_204_NO_CONTENT)
