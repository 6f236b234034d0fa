"""The REST API called within the test's own process, where no socket is needed to show something."""

from typing import Any

from django.test import Client

from tests import factories

Answer = Any  # the test client's response: it has json() and status_code


class Api:
    """`name`, signed in."""

    def __init__(self, name: str = "alice") -> None:
        self.user = factories.person(name)
        self._client = Client()
        self._client.force_login(self.user)

    def get(self, path: str) -> Answer:
        return self._client.get(f"/api/v1/{path}")

    def post(self, path: str, body: Any) -> Answer:
        return self._client.post(f"/api/v1/{path}", body, "application/json")

    def patch(self, path: str, body: Any) -> Answer:
        return self._client.patch(f"/api/v1/{path}", body, "application/json")

    def delete(self, path: str) -> Answer:
        return self._client.delete(f"/api/v1/{path}")
