"""Conversations, the tree of their messages, and the generations that write answers.

Rules that need two columns (a parent in the same conversation, a leaf of the same conversation) and all cascades are
constraints in the first migration; `on_delete` is DO_NOTHING here because Postgres does it.
"""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from uuid_utils.compat import uuid7

from slots.models import Server


def new_id() -> uuid.UUID:
    """A UUIDv7: sorts by time of making (RFC 9562)."""
    return uuid7()


class Conversation(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations")
    title = models.TextField(blank=True, default="")
    # It is only the first words of its first message, until the model has made another of its first answer.
    title_due = models.BooleanField(db_default=False)
    model = models.TextField(blank=True, default="")  # empty: whichever is served
    system_prompt = models.TextField(blank=True, default="")
    params = models.JSONField(default=dict, blank=True)
    # The newest message of the path that is shown and sent to the model.
    leaf = models.ForeignKey(
        "Message", on_delete=models.DO_NOTHING, null=True, blank=True, related_name="+", db_constraint=False
    )
    created_at = models.DateTimeField(db_default=Now())
    # When something was said in it last: the order of the list, which no renaming, pinning or setting changes.
    updated_at = models.DateTimeField(db_default=Now())
    pinned = models.BooleanField(db_default=False)
    archived = models.BooleanField(db_default=False)
    # Hidden since then from everybody, and soon removed for good (`conversations.deleting`).
    deleted_at = models.DateTimeField(null=True, blank=True)
    # Of an imported one: what it had that has no field here, and a digest of its content.
    imported = models.JSONField(null=True, blank=True)
    import_digest = models.BinaryField(null=True, blank=True)

    class Meta:
        default_permissions = ("view", "delete")
        permissions = [("read_text", "Can read people's conversations")]
        indexes = [
            models.Index(name="conversation_newest", fields=["owner", "-updated_at", "-id"]),
            models.Index(name="conversation_listed", fields=["owner", "archived", "-pinned", "-updated_at", "-id"]),
            models.Index(name="conversation_title_due", fields=["id"], condition=Q(title_due=True)),
            models.Index(name="conversation_deleted", fields=["deleted_at"], condition=Q(deleted_at__isnull=False)),
            models.Index(
                name="conversation_imported",
                fields=["owner", "import_digest"],
                condition=Q(import_digest__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        """Not its title, which is a person's text: this goes into the admin's log."""
        return str(self.id)


class Message(models.Model):
    class Role(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"

    id = models.UUIDField(primary_key=True, default=new_id)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.DO_NOTHING, related_name="messages", db_constraint=False
    )
    parent = models.ForeignKey(
        "self", on_delete=models.DO_NOTHING, null=True, blank=True, related_name="children", db_constraint=False
    )
    role = models.TextField(choices=Role)
    text = models.TextField(blank=True, default="")
    reasoning = models.TextField(blank=True, default="")
    # A finished answer as HTML (`conversations.rendered`), valid if its version is that of the renderer.
    html = models.JSONField(null=True, blank=True)
    html_version = models.PositiveSmallIntegerField(db_default=0)
    # Of an answer before which the window moved: the message from which on the model sees the conversation since then,
    # and the model tokens of the context that was chosen for (`conversations.window`).
    window_start = models.UUIDField(null=True, blank=True)
    window_context = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    # Of an imported one: what it had that has no field here, which may be long, and what people are told of that.
    imported = models.JSONField(null=True, blank=True)
    notes = models.JSONField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(name="message_in_conversation", fields=["id", "conversation"]),
            models.CheckConstraint(name="message_role", condition=Q(role__in=["user", "assistant"])),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.id}"


class Generation(models.Model):
    """One attempt of the product at an answer, or at more of one; `attempt` counts the requests that it took so far."""

    class Status(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        CANCELLED = "cancelled"  # a person
        FAILED = "failed"  # an error
        INTERRUPTED = "interrupted"  # a process or lease went away, three times

    LIVE = (Status.QUEUED, Status.RUNNING)

    class Kind(models.TextChoices):
        SEND = "send"
        REGENERATE = "regenerate"  # another answer to the same message
        CONTINUE = "continue"  # more of an answer that ended too early

    id = models.UUIDField(primary_key=True, default=new_id)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.DO_NOTHING, related_name="generations", db_constraint=False
    )
    # The assistant message it writes, or goes on with: then it is the newest of several.
    # Without an index of its own, as in Chunk: another one begins with it.
    message = models.ForeignKey(
        Message, on_delete=models.DO_NOTHING, related_name="generations", db_constraint=False, db_index=False
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    client_id = models.UUIDField()
    request_digest = models.BinaryField()
    kind = models.TextField(choices=Kind)
    model = models.TextField(blank=True, default="")
    answered_by = models.TextField(blank=True, db_default="")  # the model of its server; of the last one, if of several
    # Of the conversation when it was asked for: later changes are for later turns. NULL: from before this was kept.
    params = models.JSONField(null=True, blank=True)
    system_prompt = models.TextField(null=True, blank=True)  # noqa: DJ001  as above
    status = models.TextField(choices=Status, db_default=Status.QUEUED.value)
    fence = models.BigIntegerField(null=True, blank=True)
    attempt = models.PositiveSmallIntegerField(db_default=0)
    stop_asked_at = models.DateTimeField(null=True, blank=True)
    queued_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    # Committed events of this generation, its end included; while it lives they are its chunks.
    seq = models.IntegerField(db_default=0)
    finish_reason = models.TextField(blank=True, default="")
    error = models.JSONField(null=True, blank=True)
    usage = models.JSONField(null=True, blank=True)
    timings = models.JSONField(null=True, blank=True)
    # What its person was told first of how long it would wait for its first token, in seconds from then on.
    estimated_at = models.DateTimeField(null=True, blank=True)
    estimate_low = models.PositiveIntegerField(null=True, blank=True)
    estimate_high = models.PositiveIntegerField(null=True, blank=True)
    imported = models.BooleanField(db_default=False)  # it ran elsewhere: no figures of this site are made from it

    class Meta:
        default_permissions = ()
        permissions = [("stop_generation", "Can stop people's answers")]
        constraints = [
            models.UniqueConstraint(name="generation_client_once", fields=["owner", "client_id"]),
            models.UniqueConstraint(
                name="generation_one_live_per_conversation",
                fields=["conversation"],
                condition=Q(status__in=["queued", "running"]),
            ),
            models.UniqueConstraint(
                name="generation_one_per_fence", fields=["fence"], condition=Q(fence__isnull=False)
            ),
            models.CheckConstraint(
                name="generation_running_has_fence",
                condition=Q(status="running", fence__isnull=False) | (~Q(status="running") & Q(fence__isnull=True)),
            ),
            models.CheckConstraint(
                name="generation_end_has_time",
                condition=Q(status__in=["queued", "running"], finished_at__isnull=True)
                | (~Q(status__in=["queued", "running"]) & Q(finished_at__isnull=False)),
            ),
        ]
        indexes = [
            models.Index(name="generation_live", fields=["queued_at"], condition=Q(status__in=["queued", "running"])),
            models.Index(name="generation_of_message", fields=["message", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.status} {self.id}"


class Preset(models.Model):
    """What a person begins conversations with; copied into them, so that later changes change none of them."""

    id = models.UUIDField(primary_key=True, default=new_id)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="presets")
    name = models.TextField()
    model = models.TextField(blank=True, default="")
    system_prompt = models.TextField(blank=True, default="")
    params = models.JSONField(default=dict, blank=True)
    for_everybody = models.BooleanField(default=False)  # the others may use it and not change it
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ("change",)
        constraints = [models.UniqueConstraint(name="preset_name_once", fields=["owner", "name"])]

    def __str__(self) -> str:
        return str(self.id)


class Chunk(models.Model):
    """One committed event of a live generation; folded into the message at its end."""

    class Part(models.IntegerChoices):
        TEXT = 0
        REASONING = 1

    pk = models.CompositePrimaryKey("generation_id", "seq")
    generation = models.ForeignKey(
        Generation, on_delete=models.DO_NOTHING, related_name="chunks", db_constraint=False, db_index=False
    )
    seq = models.IntegerField()
    part = models.PositiveSmallIntegerField(choices=Part)
    start = models.IntegerField()  # code points of that part before this chunk
    text = models.TextField()
    tokens = models.IntegerField()  # stream events with text in this chunk: model tokens, as near as a stream tells
    stream_id = models.UUIDField()
    stream_bytes = models.BigIntegerField()  # bytes of that stream consumed up to here, at an event boundary

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.generation_id}/{self.seq}"


class Person(models.Model):
    """A person as the queue knows them. Sends lock the row, so that their limit is counted one after the other."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+")
    served_at = models.DateTimeField(null=True, blank=True)  # when a turn of theirs began last: who had one waits

    class Meta:
        default_permissions = ()
        verbose_name_plural = "people"

    def __str__(self) -> str:
        return f"person {self.pk}"


class Forgetful(models.Model):
    """A server whose process loses a conversation's cache when what was read last is taken back, as after a title."""

    server = models.OneToOneField(Server, on_delete=models.CASCADE, primary_key=True, related_name="+")
    at = models.DateTimeField(db_default=Now())  # of the process that was there then, and of none that came later

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.server} since {self.at}"


class Telling(models.Model):
    """The one row that says which worker tells the places, until when."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    worker = models.UUIDField()
    until = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"worker {self.worker} until {self.until}"


class Waiting(models.Model):
    """A queued generation and its place; the one definition of the order (view `conversations_queue`)."""

    generation = models.OneToOneField(
        Generation, on_delete=models.DO_NOTHING, primary_key=True, db_column="id", related_name="waiting"
    )
    conversation = models.ForeignKey(Conversation, on_delete=models.DO_NOTHING, related_name="+")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.DO_NOTHING, related_name="+")
    model = models.TextField()
    began = models.BooleanField()  # its server or worker went: it goes on before anybody begins
    untold = models.BooleanField()  # its person was given no estimate yet
    running = models.IntegerField()  # answers of its person that are being written
    share = models.IntegerField()  # how many their person has with this one, those being written included
    position = models.IntegerField()  # in the order in which turns begin, over all models
    place = models.IntegerField()  # among those that wait for the same model, or for any

    class Meta:
        default_permissions = ()
        managed = False
        db_table = "conversations_queue"

    def __str__(self) -> str:
        return f"place {self.place}"
