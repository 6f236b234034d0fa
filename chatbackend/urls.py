"""Every address of the site; `/ws/` is in `chatbackend.asgi`."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from chatbackend import failures, health
from chatbackend.apps import load_admin

handler400 = "chatbackend.failures.bad_request"
handler403 = "chatbackend.failures.forbidden"
handler404 = "chatbackend.failures.not_found"
handler429 = "chatbackend.failures.too_many"
handler500 = "chatbackend.failures.broken"

# Steps of allauth that need mail, text messages or another kind of token, none of which this site has.
NOT_OFFERED = (
    r"^_allauth/(?:app|browser)/v1/"
    r"(?:account/(?:email|phone)|auth/(?:code|email|phone|reauthenticate/code|password)|tokens)\b"
)

load_admin()

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("conversations.pages.urls")),
    path("", include("chatbackend.accounts.urls")),
    path("admin/", admin.site.urls),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("ws/", failures.not_upgraded),
    re_path(NOT_OFFERED, failures.not_found),
    path("_allauth/", include("allauth.headless.urls")),
    path("api/v1/", include("conversations.api.urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema", template_name="api_docs.html")),
]
