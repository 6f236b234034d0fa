"""Servers as a worker finds them: looked at, and probed as far as they let it."""

from slots import probing, servers
from slots.models import Server


def met(url: str, *, api_key: str = "") -> Server:
    """The row of the server at `url` after one look at it."""
    server, _ = Server.objects.get_or_create(url=url, defaults={"api_key": api_key})
    servers.look(server)
    return Server.objects.get(pk=server.pk)


def tried(url: str, *, api_key: str = "", times: int = 1) -> Server:
    """The same, and probed; `times` as often as a worker would, without its waits in between."""
    server = met(url, api_key=api_key)
    for _ in range(times):
        Server.objects.filter(pk=server.pk).update(probing_until=None)
        if probing.run(Server.objects.get(pk=server.pk)):
            break
    return Server.objects.get(pk=server.pk)
