"""What every page of the site has in common."""

from django.conf import settings
from django.http import HttpRequest


def site(request: HttpRequest) -> dict[str, str]:
    """A context processor."""
    return {"site_name": settings.SITE_NAME}
