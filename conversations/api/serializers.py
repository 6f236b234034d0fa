"""What clients send, checked; and what they get, described for the OpenAPI schema (`conversations.frames` makes it)."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from conversations import fitting, parameters
from conversations.fields import Flag, Id, Params, Strict, Text
from conversations.models import Generation, Message
from conversations.text import LONGEST_MESSAGE
from slots import servers

LONGEST_TITLE = 200
LONGEST_NAME = 100
LONGEST_SYSTEM_PROMPT = 20_000


class Settings(Strict):
    """What answers are made with. `before` in the context has what was set; what stays as it was is not checked."""

    model = Text(required=False, help_text="One that is served, or empty for whichever is.")
    system_prompt = Text(
        longest=LONGEST_SYSTEM_PROMPT,
        required=False,
        help_text="In what the model is sent `{date}`, `{time}` and `{datetime}` are replaced: by when the "
        "conversation began, in the site's time zone, in each turn the same. All else goes as it is.",
    )
    params = Params(required=False, allow_null=True, help_text="null, of one or of all: the server's default.")

    def validate_model(self, model: str) -> str:
        served = servers.models()
        if model not in ("", *served, getattr(self.context.get("before"), "model", "")):
            names = ", ".join(served) or "none at the moment"
            raise serializers.ValidationError(f"No server has the model {model!r}; served: {names}. Empty takes any.")
        return model

    def validate(self, fields: dict[str, Any]) -> dict[str, Any]:
        name, before = parameters.THINKING.name, self.context.get("before")
        thinking = (fields.get("params") or {}).get(name)
        model = fields.get("model", before.model if before else "")
        if thinking and not (before and before.params.get(name) == thinking):
            offered = parameters.thinking_of(servers.switches(model))
            if sentence := parameters.why_not_thinking(thinking, model, offered):
                raise serializers.ValidationError({"params": {name: [sentence]}})
        prompt = fields.get("system_prompt", before.system_prompt if before and "model" in fields else "")
        if sentence := fitting.why_not_system_prompt(prompt, model):
            raise serializers.ValidationError({"system_prompt": [sentence]})
        return fields


class ConversationChange(Settings):
    title = Text(longest=LONGEST_TITLE, required=False)
    pinned = Flag(required=False, help_text="Listed before all others.")
    archived = Flag(required=False, help_text="Out of the list, until something is said in it again.")


class ConversationInput(ConversationChange):
    preset = Id(required=False, allow_null=True, help_text="Its values are copied; what is sent beside it counts more.")


class PresetChange(Settings):
    name = Text(longest=LONGEST_NAME, required=False)

    def validate_name(self, name: str) -> str:
        if not name.strip():
            raise serializers.ValidationError("This is empty: give it a name.")
        return name.strip()


class PresetInput(PresetChange):
    name = Text(longest=LONGEST_NAME)


class SendInput(Strict):
    client_id = Id(help_text="Made by the client, one per message: sent again it repeats the answer, not the message.")
    text = Text()
    parent = Id(  # type: ignore[assignment]  # a field of the body, not the serializer it is in
        required=False,
        allow_null=True,
        help_text="The answer this replies to; null: a first message; left out: the last.",
    )
    branch = Flag(
        required=False,
        help_text="Whether `parent` may be another one than the last: false refuses that, with what is newer. "
        "Left out: it may, and what followed it is kept beside.",
    )


class EditInput(Strict):
    client_id = Id(help_text="Made by the client, one per message: sent again it repeats the answer, not the message.")
    text = Text()


class EditPlanned(serializers.Serializer[Any]):
    same = serializers.IntegerField(
        default=0,
        min_value=0,
        max_value=LONGEST_MESSAGE,
        help_text="Characters at the beginning of the message that stay as they are.",
    )
    characters = serializers.IntegerField(
        default=None,
        min_value=1,
        max_value=LONGEST_MESSAGE,
        help_text="Of the message as it will be; left out: as many as it has.",
    )


class RegenerateInput(Strict):
    client_id = Id(help_text="Made by the client, one per wish: sent again it repeats the answer, not the wish.")


class ContinueInput(RegenerateInput):
    pass


class ConversationOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    title = serializers.CharField()
    model = serializers.CharField()
    system_prompt = serializers.CharField()
    params = Params()
    pinned = serializers.BooleanField()
    archived = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField(help_text="When something was said in it last; changes to it leave it.")


class PresetOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    model = serializers.CharField()
    system_prompt = serializers.CharField()
    params = Params()
    for_everybody = serializers.BooleanField(help_text="An administrator offers it to all.")
    mine = serializers.BooleanField(help_text="Whether one can change and delete it.")
    warnings = serializers.ListField(
        child=serializers.CharField(),
        help_text="Sentences on its system prompt: what in it is not replaced, or keeps new conversations cold.",
    )
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class Problem(serializers.Serializer[Any]):
    code = serializers.CharField()
    detail = serializers.CharField(help_text="A sentence for a person.")
    retryable = serializers.BooleanField(help_text="Whether the same request can succeed later.")


class Usage(serializers.Serializer[Any]):
    prompt_tokens = serializers.IntegerField(allow_null=True, help_text="null where the server never said.")
    completion_tokens = serializers.IntegerField()


class Timings(serializers.Serializer[Any]):
    """null is what was not measured; there may be more fields."""

    queue_ms = serializers.IntegerField(allow_null=True)
    ttft_ms = serializers.IntegerField(allow_null=True, help_text="From the send to the first piece.")
    prompt_n = serializers.IntegerField(allow_null=True, help_text="Model tokens that were read, in `prompt_ms`.")
    prompt_ms = serializers.FloatField(allow_null=True)
    cache_n = serializers.IntegerField(allow_null=True, help_text="Model tokens that were found in the slot's cache.")
    tokens_per_second = serializers.FloatField(allow_null=True)
    thinking_ms = serializers.IntegerField(allow_null=True, help_text="From the first thought to the last.")
    replay_cause = serializers.CharField(allow_null=True, help_text="Why history was read again.")


class EstimateOutput(serializers.Serializer[Any]):
    low = serializers.IntegerField()
    high = serializers.IntegerField()


class CostOutput(serializers.Serializer[Any]):
    tokens = serializers.IntegerField(help_text="Model tokens that are read before the first token of the answer.")
    seconds = EstimateOutput(allow_null=True, help_text="For that, on a free slot; null until a speed is known.")


class GenerationState(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    conversation = serializers.UUIDField()
    message = serializers.UUIDField(help_text="The answer it writes.")
    status = serializers.ChoiceField(choices=Generation.Status.choices)
    place = serializers.IntegerField(allow_null=True, help_text="In the queue, from 1.")
    estimate = EstimateOutput(
        allow_null=True, help_text="Seconds until its first token, while it waits; null until something is known."
    )
    params = Params(allow_null=True, help_text="It is made with; later changes are for later answers.")
    seq = serializers.IntegerField(help_text="Events so far.")
    finish_reason = serializers.CharField()
    error = Problem(allow_null=True)
    usage = Usage(allow_null=True)
    timings = Timings(allow_null=True, help_text="null until it has ended, as `usage`.")
    window_start = serializers.UUIDField(
        allow_null=True,
        help_text="The message from which on the model sees the conversation since this answer; null: as before.",
    )


class GenerationOutput(GenerationState):
    text = serializers.CharField()
    reasoning = serializers.CharField()


class MessageOutput(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    parent = serializers.UUIDField(allow_null=True)  # type: ignore[assignment]  # as above
    role = serializers.ChoiceField(choices=Message.Role.choices)
    text = serializers.CharField()
    reasoning = serializers.CharField()
    created_at = serializers.DateTimeField()
    versions = serializers.ListField(
        child=serializers.UUIDField(),
        help_text="What was written in its place, oldest first, itself included: made by editing and regenerating.",
    )
    notes = serializers.ListField(
        child=serializers.CharField(),
        help_text="What an imported message had that is kept and not shown: sentences.",
    )
    generation = GenerationState(allow_null=True, help_text="The newest that wrote it; null for a person's message.")
    html = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        allow_null=True,
        help_text="Only with `html=true`: an answer as safe HTML, block by block; null for a person's message.",
    )


class SentOutput(serializers.Serializer[Any]):
    message = MessageOutput()
    generation = GenerationOutput()


class ModelOutput(serializers.Serializer[Any]):
    id = serializers.CharField(source="name", help_text="What a conversation's `model` may be.")
    n_ctx = serializers.IntegerField(source="context", help_text="Model tokens that a conversation can have.")
    places = serializers.IntegerField(help_text="Conversations that are answered at once.")
    busy = serializers.IntegerField(help_text="Of the places.")
    waiting = serializers.IntegerField(help_text="Messages that are before the next one.")
    usable = serializers.BooleanField(help_text="Whether it answers at the moment; what is sent otherwise waits.")
    reason = serializers.CharField(allow_null=True, help_text="A sentence why it does not.")
    thinking = serializers.ListField(
        child=serializers.ChoiceField(choices=parameters.THINKING.options),
        help_text="What `params.thinking` may be; empty: its chat template has no such switch.",
    )
    demo = serializers.BooleanField(help_text="The small built-in model: for trying out, its answers are often wrong.")


@extend_schema_serializer(many=False)
class ConversationPage(serializers.Serializer[Any]):
    results = ConversationOutput(many=True)
    next = serializers.URLField(allow_null=True, help_text="The page that follows.")


@extend_schema_serializer(many=False)
class MessagePage(serializers.Serializer[Any]):
    results = MessageOutput(many=True, help_text="Oldest first.")
    next = serializers.URLField(allow_null=True, help_text="The page before this one.")


class Piece(serializers.Serializer[Any]):
    text = serializers.CharField()
    match = serializers.BooleanField(help_text="Whether it is what was asked for.")


class HitOutput(serializers.Serializer[Any]):
    conversation = ConversationOutput()
    title = Piece(many=True)
    message = serializers.UUIDField(allow_null=True, help_text="The newest that has it; null if only the title does.")
    role = serializers.ChoiceField(choices=Message.Role.choices, allow_null=True)
    created_at = serializers.DateTimeField(allow_null=True)
    messages = serializers.IntegerField(help_text="How many have it.")
    excerpt = Piece(many=True, help_text="From that message, around the first match.")


@extend_schema_serializer(many=False)
class SearchPage(serializers.Serializer[Any]):
    results = HitOutput(many=True)
    next = serializers.URLField(allow_null=True, help_text="The next older page.")


class ProblemOutput(Problem):
    errors = serializers.DictField(  # type: ignore[assignment]  # as above
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="With code `invalid`: what is wrong, by field.",
    )


class TryLaterOutput(Problem):
    retry_after = serializers.IntegerField(help_text="Seconds, as in the Retry-After header.")


class TooLongOutput(Problem):
    """`text_too_long`; or `context_exceeded`: more model tokens than the model can read, whatever was said before."""

    prompt_tokens = serializers.IntegerField(required=False, help_text="Of the question with its system prompt.")
    n_ctx = serializers.IntegerField(required=False, help_text="That the model can read, its answer included.")


class TurnInProgressOutput(Problem):
    generation = GenerationOutput(required=False)
    messages = MessageOutput(many=True, required=False, help_text="Newer than the message that was named.")
