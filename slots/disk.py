"""What parked files take on a server's disk, and whether they are of use there, in words for administrators."""

from django.db.models import Count, Q, Sum

from slots import parked
from slots.models import Park, Server

Parking = Server.Parking

NOTHING = {
    Parking.UNKNOWN: "Not known yet.",
    Parking.OFF: "Nothing is parked there.",
    Parking.INEFFECTIVE: "Nothing is parked there: what it restored from files it did not use, or it took too long.",
}


def sentences(server: Server) -> str:
    """Whether parking works there, how many files there are, how much they take, and what is still to be done."""
    counts = Park.objects.filter(server=server).aggregate(
        names=Count("pk"), ready=Count("pk", filter=Q(state="ready")), due=Count("pk", filter=Q(state="stale")),
        bytes=Sum("bytes"),
    )  # fmt: skip
    said = [NOTHING.get(Parking(server.parking), ""), _files(server, counts["names"], counts["ready"], counts["bytes"])]
    if due := counts["due"]:
        when = ": it must be started with its --slot-save-path for that" if server.parking == Parking.OFF else ""
        said.append(f"{due} {'is' if due == 1 else 'are'} still to be overwritten with nothing{when}.")
    return " ".join(filter(None, said))


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    figure, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if figure < 1000:
            break
        figure, unit = figure / 1000, larger
    return f"{count:,} bytes" if unit == "bytes" else f"{figure:.{0 if figure >= 100 else 1}f} {unit}"


def _files(server: Server, names: int, ready: int, taken: int | None) -> str:
    if server.parking != Parking.EFFECTIVE:
        return ""
    most, took = parked.most_bytes(server), ""
    bound = f", {size(most)} at most" if most else ""
    if server.restore_ms is not None:
        took = f" Bringing one back took {server.restore_ms:,.0f} ms lately."
    return f"{ready} of {names} files hold a cache, {size(taken or 0)}{bound}.{took}"
