"""The pages. What they show of conversations they fetch over the API and the websocket, like any other client."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


@login_required
def chat(request: HttpRequest, id_: UUID | None = None) -> HttpResponse:
    return render(request, "chat/chat.html")
