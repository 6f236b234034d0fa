"""The page. What it shows of conversations it fetches over the API and the websocket, like any other client."""

from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie

from chatbackend.accounts.models import User
from conversations import access, ahead
from conversations.parameters import PARAMETERS
from conversations.served import served
from conversations.text import LONGEST_MESSAGE
from slots import servers


@login_required
@ensure_csrf_cookie
def chat(request: HttpRequest, id_: UUID | None = None) -> HttpResponse:
    """One page for every conversation: which one is open is its address, and changes without loading it again."""
    assert isinstance(request.user, User)
    models = served()
    if id_ and access.owned_by(request.user.pk).filter(pk=id_).exists():
        ahead.hint(request.user.pk, id_)
    return render(
        request,
        "chat/chat.html",
        {
            "first_time": not access.owned_by(request.user.pk).exists(),
            "served": models,
            "demo": any(one.demo for one in models),
            "reason": servers.why_none(),
            "parameters": PARAMETERS,
            "longest_message": LONGEST_MESSAGE,
            "may_invite": settings.SIGNUP != "closed",
        },
    )
