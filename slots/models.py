"""Servers, their slots, and the leases that ended.

The present is in `Slot` alone; `PastLease` holds closed leases, so history cannot contradict it. A slot row has three
groups of columns: the lease (who may send), the request (what may be running), the residency (whose tokens the cache
holds: a fact about the cache, not a right). Rule for the last two: weaken before, strengthen after. Before an action
that changes what a slot or a file (`Park`) holds the weaker truth is committed, after its confirmation the stronger.
Unknown is safe.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Now


class Server(models.Model):
    """One llama-server process behind one address."""

    class State(models.TextChoices):
        UNKNOWN = "unknown"  # never reached
        PROBING = "probing"  # its process was seen and is being tried out; nobody can lease there
        READY = "ready"
        UNUSABLE = "unusable"  # its process was tried and cannot be used; `costs` says why
        DRAINING = "draining"  # gets no new leases
        RETIRED = "retired"  # no longer configured

    class Grade(models.TextChoices):
        """How its process may be used safely: `slots.grades` judges, once per process."""

        FULL = "full"
        NO_PARKING = "no_parking"
        ONE_AT_A_TIME = "one_at_a_time"  # only slot 0 is leased: one request in flight on the whole server
        UNUSABLE = "unusable"

    class Parking(models.TextChoices):
        """Whether its process brings caches back from files: the probe finds out, and every restore after that."""

        UNKNOWN = "unknown"
        EFFECTIVE = "effective"
        INEFFECTIVE = "ineffective"  # what it says that it restored it reads again
        OFF = "off"  # it has no folder for files, or keeps caches elsewhere

    url = models.TextField(unique=True)
    api_key = models.TextField(blank=True, default="")
    from_environment = models.BooleanField(default=False)
    model = models.TextField(blank=True, default="")
    state = models.TextField(choices=State, default=State.UNKNOWN)
    # What the last worker that looked found; a hint for people, never a ground to lease or not.
    trouble = models.TextField(blank=True, default="")
    trouble_cure = models.TextField(blank=True, default="")
    # `media_marker` of /props: random per process. Unique: two addresses of one process cannot both be leased.
    boot = models.TextField(null=True, blank=True, unique=True)
    boot_at = models.DateTimeField(null=True, blank=True)
    past_boots = ArrayField(models.TextField(), default=list, blank=True)
    total_slots = models.PositiveSmallIntegerField(null=True, blank=True)
    n_ctx = models.PositiveIntegerField(null=True, blank=True)
    # What its chat template lets a request decide (`slots.reading.SWITCHES`).
    switches = ArrayField(models.TextField(), default=list, blank=True)
    asleep = models.BooleanField(default=False)  # its model and every cache were freed until somebody asks
    # What the probe of this process found; empty until it has.
    grade = models.TextField(choices=Grade, blank=True, default="")
    costs = models.TextField(blank=True, default="")  # one sentence: what this grade costs, or why it has none
    cure = models.TextField(blank=True, default="")  # the command line that would do better
    parks_in_ram = models.BooleanField(default=False)  # llama-server keeps other conversations' caches itself
    graded_at = models.DateTimeField(null=True, blank=True)
    # The probe under way: whose it is, until when it counts as alive, and how often it was begun on this process.
    probe = models.UUIDField(null=True, blank=True)
    probing_until = models.DateTimeField(null=True, blank=True)
    probes = models.PositiveSmallIntegerField(default=0)
    # Requests that were not ours: how many were noticed, and when the last three were.
    foreign_count = models.PositiveIntegerField(default=0)
    foreign_at = ArrayField(models.DateTimeField(), default=list, blank=True)
    foreign_task = models.IntegerField(null=True, blank=True)  # the newest one's number on the server
    # Milliseconds per model token of prompts that it reads: a moving average over turns, NULL before the first.
    read_ms = models.FloatField(null=True, blank=True)
    watched_at = models.DateTimeField(null=True, blank=True)  # when a worker last read its /slots for such requests
    # Files of caches (`Park`). The fingerprint tells whether this process can go on from a file of the one before.
    parking = models.TextField(choices=Parking, default=Parking.UNKNOWN)
    fingerprint = models.TextField(blank=True, default="")
    parking_proved = ArrayField(models.BooleanField(), default=list, blank=True)  # whether its last three were of use
    save_ms = models.FloatField(null=True, blank=True)  # of one file, as seen from here: a moving average
    restore_ms = models.FloatField(null=True, blank=True)
    token_bytes = models.FloatField(null=True, blank=True)  # that a model token takes in a file

    class Meta:
        default_permissions = ("add", "change", "view")  # history refers to it: it is retired, never deleted
        constraints = [
            models.CheckConstraint(
                name="server_ready_is_known",
                condition=~Q(state__in=["probing", "ready", "draining"])
                | Q(boot__isnull=False, total_slots__gt=0, n_ctx__gt=0),
            ),
            models.CheckConstraint(
                name="server_ready_is_graded",
                condition=~Q(state="ready") | Q(grade__in=["full", "no_parking", "one_at_a_time"]),
            ),
        ]

    def __str__(self) -> str:
        return self.url


class Slot(models.Model):
    """One KV cache of a server, and the lease on it."""

    class Condition(models.TextChoices):
        READY = "ready"
        STOPPING = "stopping"  # its `stream_id` is not yet confirmed gone; has no holder
        GONE = "gone"  # the server came back with fewer slots
        UNUSED = "unused"  # the server answers one at a time, on slot 0

    class Phase(models.TextChoices):
        FREE = "free"
        BUSY = "busy"
        IDLE = "idle"

    class Work(models.TextChoices):
        """What a slot is busy with. A turn takes it from any of the others (`leases.acquire`)."""

        TURN = "turn"
        TITLE = "title"  # of its conversation, asked for behind what the cache holds
        PREWARM = "prewarm"  # its conversation is read ahead: somebody opened it, or types
        PARK = "park"  # its cache is saved to a file ahead
        WIPE = "wipe"  # files that must not be kept are overwritten, on a slot that is nobody's

    # As in PastLease, the first column of another index: one of its own would be written for nothing.
    server = models.ForeignKey(Server, on_delete=models.RESTRICT, related_name="slots", db_index=False)
    id_slot = models.PositiveSmallIntegerField()
    condition = models.TextField(choices=Condition, db_default=Condition.READY.value)
    # the lease
    phase = models.TextField(choices=Phase, db_default=Phase.FREE.value)
    holder = models.UUIDField(null=True, blank=True)
    fence = models.BigIntegerField(
        db_default=Func(Value("slots_fence"), function="nextval", output_field=models.BigIntegerField())
    )
    work = models.TextField(choices=Work, null=True, blank=True)  # noqa: DJ001  NULL unless busy
    worker = models.UUIDField(null=True, blank=True)
    since = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    # the request: written before it is sent, cleared when /slots said quiet
    stream_id = models.UUIDField(null=True, blank=True)
    # the residency
    kv_of = models.UUIDField(null=True, blank=True)
    kv_tokens = models.IntegerField(null=True, blank=True)  # as /slots said at release, or a restore; NULL: unknown
    kv_task = models.IntegerField(null=True, blank=True)  # its id_task then: any other request changes it
    # What its holder noted of them, for its own next turn; not read here.
    kv_outline = models.JSONField(null=True, blank=True)
    used_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ("view",)
        permissions = [("evict_slot", "Can evict leases")]
        constraints = [
            models.UniqueConstraint(name="slot_once", fields=["server", "id_slot"]),
            models.UniqueConstraint(name="slot_one_per_holder", fields=["holder"], condition=Q(holder__isnull=False)),
            models.CheckConstraint(
                name="slot_lease_shape",
                condition=Q(phase="free", holder__isnull=True, expires_at__isnull=True)
                | Q(phase__in=["busy", "idle"], holder__isnull=False, expires_at__isnull=False),
            ),
            models.CheckConstraint(
                name="slot_busy_shape",
                condition=Q(phase="busy", worker__isnull=False, work__isnull=False)
                | (~Q(phase="busy") & Q(worker__isnull=True, work__isnull=True)),
            ),
            models.CheckConstraint(
                name="slot_quiet_unless_busy_or_stopping",
                condition=Q(stream_id__isnull=True) | Q(phase="busy") | ~Q(condition="ready"),
            ),
            models.CheckConstraint(name="slot_unready_is_free", condition=Q(condition="ready") | Q(phase="free")),
            models.CheckConstraint(
                name="slot_cache_shape", condition=Q(kv_of__isnull=False) | Q(kv_tokens__isnull=True) | Q(kv_tokens=0)
            ),
            models.CheckConstraint(
                name="slot_outline_shape", condition=Q(kv_tokens__isnull=False) | Q(kv_outline__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return f"slot {self.id_slot} of {self.server}"


class Park(models.Model):
    """One file of a server's bounded pool, and whose cache it holds. llama-server deletes none: names are reused.

    empty -> writing -> ready -> stale. A file counts only while it is `ready`; nobody reads another's.
    """

    class State(models.TextChoices):
        EMPTY = "empty"  # it was never written, or was overwritten with nothing
        WRITING = "writing", "Being written"  # under the lease `fence`; what it holds is not known
        READY = "ready"  # it holds `tokens` of `holder` and of nobody else
        # It may hold what is of no use, or must not be kept: overwriting it is due since `due_at`.
        STALE = "stale", "To be overwritten"

    server = models.ForeignKey(Server, on_delete=models.RESTRICT, related_name="parks")
    number = models.PositiveSmallIntegerField()
    name = models.TextField()
    state = models.TextField(choices=State, db_default=State.EMPTY.value)
    holder = models.UUIDField(null=True, blank=True)
    fence = models.BigIntegerField(null=True, blank=True)  # the lease under which it is, or was last, written
    reader = models.BigIntegerField(null=True, blank=True)  # the lease under which it was last read: not overwritten
    tokens = models.IntegerField(null=True, blank=True)
    bytes = models.BigIntegerField(null=True, blank=True)
    outline = models.JSONField(null=True, blank=True)  # what its holder noted of them; not read here
    fingerprint = models.TextField(blank=True, db_default="")  # the server's when it was written
    saved_at = models.DateTimeField(null=True, blank=True)  # no later than what it holds was read from the slot
    used_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        verbose_name = "parked file"
        constraints = [
            models.UniqueConstraint(name="park_once", fields=["server", "number"]),
            models.UniqueConstraint(
                name="park_one_per_holder", fields=["server", "holder"], condition=Q(state__in=["writing", "ready"])
            ),
            models.CheckConstraint(
                name="park_shape",
                condition=Q(state="empty", holder__isnull=True, tokens__isnull=True, due_at__isnull=True)
                | Q(
                    state="writing", holder__isnull=False, fence__isnull=False, tokens__isnull=True, due_at__isnull=True
                )
                | Q(state="ready", holder__isnull=False, tokens__gt=0, saved_at__isnull=False, due_at__isnull=True)
                | Q(state="stale", holder__isnull=True, tokens__isnull=True, due_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.server}"


class PastLease(models.Model):
    """One closed stretch of a lease: a busy turn or an idle wait between turns."""

    class EndedBy(models.TextChoices):
        NEXT_TURN = "next_turn"  # or other work of the same holder
        TURN_DONE = "turn_done"
        WORK_DONE = "work_done"  # title, prewarm, park, wipe
        PREEMPTED = "preempted"  # such work, by a turn
        TAKEN_OVER = "taken_over"
        EXPIRED = "expired"
        EVICTED = "evicted"
        REVOKED = "revoked"
        SERVER_RESTARTED = "server_restarted"
        MOVED = "moved"

    fence = models.BigIntegerField(primary_key=True)
    slot = models.ForeignKey(Slot, on_delete=models.RESTRICT, related_name="past_leases", db_index=False)
    holder = models.UUIDField()
    phase = models.TextField(choices=Slot.Phase)
    work = models.TextField(choices=Slot.Work, null=True, blank=True)  # noqa: DJ001  as on the slot
    worker = models.UUIDField(null=True, blank=True)
    stream_id = models.UUIDField(null=True, blank=True)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    ended_by = models.TextField(choices=EndedBy)

    class Meta:
        default_permissions = ("view",)
        verbose_name_plural = "lease history"
        constraints = [
            models.CheckConstraint(name="past_lease_in_order", condition=Q(began_at__lte=F("ended_at"))),
        ]
        indexes = [
            models.Index(name="past_lease_of_slot", fields=["slot", "-fence"], include=["stream_id"]),
            models.Index(name="past_lease_of_holder", fields=["holder", "-fence"]),
        ]

    def __str__(self) -> str:
        return f"fence {self.fence}"
